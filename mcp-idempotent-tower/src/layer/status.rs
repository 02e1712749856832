//! The request that asks what became of a call.
//!
//! 1. The params are `{key?, tool?, arguments?}`. As in a call, the key may also be in `_meta` or
//!    in the tool's key argument. Without a key, tool and arguments identify the call.
//! 2. Keys are looked up in the caller's scope. If there is an `authorize` hook, the request must
//!    name the tool, and the hook is asked. A tool whose calls are left alone has none to look up.
//! 3. A server that cannot reach the store, or has a different secret than the records, answers
//!    with an error that says nothing about the call: its outcome is unknown.
//! 4. The answer has a `state` and what to do `next`. It has the recorded result only if tool and
//!    arguments are given and match the call. A key that was not seen is never a reason to make a
//!    new one: the first request may still be on its way.

use std::sync::Arc;

use mcp_idempotent_core::{
    Action, CallInfo, CommitOutcome, KeyRequirement, OnDoubt, Policy, Record, RecordState, Refusal,
    Store, answer::Standing, store::Inspected,
};
use rmcp::{
    ErrorData, RoleServer,
    model::{CustomResult, JsonObject, ProtocolVersion, ServerResult},
    service::RequestContext,
};
use serde_json::{Map, Value, json};

use crate::{
    Idempotency,
    call::{
        identity,
        key::{self, Places, Unreadable},
        refusal, result,
    },
    wire,
};

/// What is asked for.
pub(super) struct Asked {
    /// The member `key`, valid or not.
    key: Option<Value>,
    pub(super) tool: Option<String>,
    arguments: Option<JsonObject>,
}

impl Asked {
    /// # Errors
    ///
    /// The params are malformed.
    pub(super) fn parse(params: Option<Value>) -> Result<Self, ErrorData> {
        let mut params = match params {
            Some(Value::Object(params)) => params,
            Some(_) => return Err(malformed("its params are not an object")),
            None => Map::new(),
        };
        let tool = match params.remove("tool") {
            Some(Value::String(tool)) => Some(tool),
            Some(_) => return Err(malformed("`tool` is not a string")),
            None => None,
        };
        let arguments = match params.remove("arguments") {
            Some(Value::Object(arguments)) => Some(arguments),
            Some(_) => return Err(malformed("`arguments` is not an object")),
            None => None,
        };
        Ok(Self {
            key: params.remove("key"),
            tool,
            arguments,
        })
    }
}

/// # Errors
///
/// The request does not identify a call, the caller may not ask, or the store could not be queried.
/// Nothing was changed.
pub(super) async fn answer<S: Store>(
    idempotency: &Idempotency<S>,
    policy: &Policy,
    asked: Asked,
    context: &RequestContext<RoleServer>,
) -> Result<CustomResult, ErrorData> {
    let places = Places::of(&context.meta, asked.arguments.as_ref(), policy);
    let key = key::read(asked.key.iter().chain(places.values())).map_err(|why| match why {
        Unreadable::Invalid(error) => malformed(&error.to_string()),
        Unreadable::Contradiction => malformed("it carries two different keys"),
    })?;
    if key.is_none() && asked.tool.is_none() {
        return Err(malformed("it names neither a `key` nor a `tool`"));
    }
    let engine = idempotency.engine();
    let refused = |refusal: Refusal| refusal::error_data(&refusal);
    let scope = idempotency
        .scope()
        .resolve(context)
        .map_err(|no_scope| refused(Refusal::from(no_scope).into_unanswered()))?;
    if let Some(hook) = &idempotency.settings().authorize {
        let Some(tool) = &asked.tool else {
            return Err(malformed("this server requires `tool`"));
        };
        (hook.0)(context, tool)
            .await
            .map_err(|denied| refused(denied.into()))?;
    }
    if key.is_none() && policy.key != KeyRequirement::Derived {
        return Err(malformed(
            "this tool's calls without a key are not recorded",
        ));
    }
    let arguments = identity::canonical(asked.arguments.as_ref(), policy);
    let tool: Arc<str> = asked.tool.as_deref().unwrap_or_default().into();
    let name = policy.also_known_as.as_ref().unwrap_or(&tool);
    let identity = engine.identify(&scope, key.as_ref(), name, &arguments);
    let inspected = engine
        .inspect(CallInfo::new(tool, scope), &identity)
        .await
        .map_err(refused)?;
    Ok(CustomResult::new(match inspected {
        Inspected::NotSeen => status(Standing::NotSeen),
        Inspected::InProgress => status(Standing::InProgress),
        Inspected::Found(record) => {
            let is_asked_for = asked.tool.is_some() && record.fingerprint == identity.fingerprint;
            let reader = is_asked_for.then(|| Reader::of(context));
            found(record, policy.on_doubt, reader)
        }
    }))
}

/// How results look in the protocol revision of the client that asks.
struct Reader {
    is_legacy: bool,
}

impl Reader {
    fn of(context: &RequestContext<RoleServer>) -> Self {
        let version = context.protocol_version();
        // Revisions are dates, and compare as text.
        let is_legacy =
            version.is_none_or(|version| version.as_str() < ProtocolVersion::V_2026_07_28.as_str());
        Self { is_legacy }
    }

    /// The name of the member and the recorded answer, as a response to this client would have
    /// them.
    fn recorded(&self, response: &[u8]) -> Option<(&'static str, Value)> {
        match result::decode(response).ok()? {
            Ok(response) => {
                let mut result = ServerResult::from(response);
                if self.is_legacy {
                    result.strip_result_type_for_legacy_peer();
                    result.strip_non_object_output_for_legacy_peer();
                }
                Some(("result", serde_json::to_value(result).ok()?))
            }
            Err(error) => Some(("error", serde_json::to_value(error).ok()?)),
        }
    }
}

/// The answer from a record.
fn found(record: Record, on_doubt: OnDoubt, reader: Option<Reader>) -> Value {
    let standing = Standing::of(&record.state, on_doubt);
    let RecordState::Completed { response, at } = record.state else {
        return status(standing);
    };
    let mut answer = match (response, reader) {
        (Some(response), Some(reader)) => match reader.recorded(&response) {
            None => status(Standing::Unreadable),
            Some((member, recorded)) => {
                let mut answer = status(standing);
                answer[member] = recorded;
                answer
            }
        },
        (None, _) | (_, None) => status(standing),
    };
    answer["completedAt"] = at.to_string().into();
    answer
}

/// `ServerResult` is untagged, so these names must not be ones that identify another kind of
/// result.
fn status(standing: Standing) -> Value {
    let said = standing.status();
    json!({ "state": said.state, "next": said.next, "message": said.message })
}

fn malformed(why: &str) -> ErrorData {
    // Nothing is known about the call, and sending it again with its key is always safe.
    invalid(why, Action::RetrySameKey)
}

/// The tool's calls are left alone: each one that is sent runs.
pub(super) fn not_protected() -> ErrorData {
    let why = "this server does not protect the calls of this tool, so nothing is known of them, and a call \
               that is sent again runs again";
    invalid(why, Action::AskOperator)
}

fn invalid(why: &str, action: Action) -> ErrorData {
    let data = json!({
        "type": wire::STATUS_INVALID,
        "outcome": CommitOutcome::Unknown.as_str(),
        "action": action.as_str(),
    });
    ErrorData::invalid_params(
        format!("The status request cannot be answered: {why}."),
        Some(data),
    )
}
