//! The request that asks what became of a call.
//!
//! 1. The params are `{key?, tool?, arguments?}`; the key may stand in `_meta` as in a call. Without
//!    a key it is the call itself that is asked for, by tool and arguments.
//! 2. Keys are looked up in the caller's scope. Where an `authorize` hook is set, the tool must be
//!    named, and the hook is asked.
//! 3. A server with another secret than that of the records, or without the store, answers with an
//!    error that says nothing of the call: its outcome is unknown.
//! 4. The answer has a `state`, the recorded result only where tool and arguments are given and are
//!    those of the call, and what to do `next`. A key that was not seen is never a reason to make
//!    another: the first request may still be on its way.

use std::sync::Arc;

use mcp_idempotent_core::{
    CallInfo, CanonicalArguments, IdempotencyKey, KeyRequirement, Policy, Record, RecordState,
    Refusal, Store, store::Inspected,
};
use rmcp::{
    ErrorData, RoleServer,
    model::{CustomResult, JsonObject, ProtocolVersion, ServerResult},
    service::RequestContext,
};
use serde_json::{Map, Value, json};

use crate::{Idempotency, result, wire};

/// What is asked for.
pub(crate) struct Asked {
    key: Option<IdempotencyKey>,
    pub(crate) tool: Option<String>,
    arguments: Option<JsonObject>,
}

impl Asked {
    /// # Errors
    ///
    /// The params say nothing, or nothing that could be a call.
    pub(crate) fn parse(
        params: Option<Value>,
        context: &RequestContext<RoleServer>,
    ) -> Result<Self, ErrorData> {
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
        let meta = &context.meta;
        let mut key = None;
        for value in [
            params.remove("key").as_ref(),
            meta.get(wire::KEY),
            meta.get(wire::KEY_ALIAS),
        ]
        .into_iter()
        .flatten()
        {
            let Value::String(value) = value else {
                return Err(malformed("the key is not a string"));
            };
            let value =
                IdempotencyKey::new(value).map_err(|error| malformed(&error.to_string()))?;
            if key.as_ref().is_some_and(|key| *key != value) {
                return Err(malformed("it carries two different keys"));
            }
            key = Some(value);
        }
        if key.is_none() && tool.is_none() {
            return Err(malformed("it names neither a `key` nor a `tool`"));
        }
        Ok(Self {
            key,
            tool,
            arguments,
        })
    }
}

/// # Errors
///
/// The caller may not ask, or the store could not be asked. Nothing was changed.
pub(crate) async fn answer<S: Store>(
    idempotency: &Idempotency<S>,
    policy: &Policy,
    asked: Asked,
    context: &RequestContext<RoleServer>,
) -> Result<CustomResult, ErrorData> {
    let settings = idempotency.settings();
    let engine = idempotency.engine();
    let refused = |refusal: Refusal| wire::error_data(&refusal);
    let scope = idempotency
        .scope()
        .resolve(context)
        .map_err(|no_scope| refused(Refusal::from(no_scope).into_unanswered()))?;
    if let Some(hook) = &settings.authorize {
        let Some(tool) = &asked.tool else {
            return Err(malformed("this server wants the `tool` to be named"));
        };
        (hook.0)(context, tool)
            .await
            .map_err(|denied| refused(denied.into()))?;
    }
    if asked.key.is_none() && policy.key != KeyRequirement::Derived {
        return Err(malformed(
            "this tool's calls without a key are not recorded",
        ));
    }
    let left_out: Vec<Arc<str>> = policy
        .ignored
        .iter()
        .chain(&policy.key_argument)
        .cloned()
        .collect();
    let arguments = CanonicalArguments::new(asked.arguments.as_ref(), &left_out);
    let tool: Arc<str> = asked.tool.as_deref().unwrap_or_default().into();
    let identity = engine.identify(&scope, asked.key.as_ref(), &tool, &arguments);
    let inspected = engine
        .inspect(CallInfo::new(tool, scope), &identity)
        .await
        .map_err(refused)?;
    let is_asked_for =
        |record: &Record| asked.tool.is_some() && record.fingerprint == identity.fingerprint;
    Ok(CustomResult::new(match inspected {
        Inspected::NotSeen => state("not_seen", "retry_same_key", NOT_SEEN),
        Inspected::InProgress => state("in_progress", "wait", IN_PROGRESS),
        Inspected::Found(record) => found(is_asked_for(&record), record, &Reader::of(context)),
    }))
}

const NOT_SEEN: &str = "No call with this key has arrived, or none that had an effect. It may still \
    be on its way: send the call with the same key, never with a new one.";
const IN_PROGRESS: &str = "The call is running. Wait, then ask again, or send it again with the \
    same key to get its result.";
const COMPLETED: &str = "The call is completed. Send it again with the same key, tool and arguments \
    to get its result.";
const TOO_LARGE: &str = "The call is completed and its effect is committed, but its result was too \
    large to keep. Do not repeat it.";
const IN_DOUBT: &str = "The call ended without telling whether it took effect. Ask the operator to \
    look before repeating it.";
const EXPIRED: &str = "The call was completed, and its result is no longer kept. If it is meant \
    anew, send a new key.";
const UNREADABLE: &str = "The call is completed, but its stored result cannot be read. Do not \
    repeat it; ask the operator.";

/// The protocol revision of the one who asks.
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

    /// The recorded answer as it would stand in a response to this reader, and under which name.
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

fn found(is_asked_for: bool, record: Record, reader: &Reader) -> Value {
    match record.state {
        RecordState::InProgress { .. } => state("in_progress", "wait", IN_PROGRESS),
        RecordState::InDoubt { .. } => state("in_doubt", "ask_operator", IN_DOUBT),
        RecordState::Expired => state("expired", "use_new_key", EXPIRED),
        RecordState::Completed { response, at } => {
            let mut answer = match response {
                None => state("completed", "ask_operator", TOO_LARGE),
                Some(_) if !is_asked_for => state("completed", "retry_same_key", COMPLETED),
                Some(response) => match reader.recorded(&response) {
                    None => state("completed", "ask_operator", UNREADABLE),
                    Some((member, recorded)) => {
                        let mut answer = state("completed", "retry_same_key", COMPLETED);
                        answer[member] = recorded;
                        answer
                    }
                },
            };
            answer["completedAt"] = at.to_string().into();
            answer
        }
    }
}

/// `ServerResult` is untagged: none of these names may be one that another result is known by.
fn state(state: &str, next: &str, message: &str) -> Value {
    json!({ "state": state, "next": next, "message": message })
}

fn malformed(why: &str) -> ErrorData {
    ErrorData::invalid_params(
        format!("The status request cannot be answered: {why}."),
        None,
    )
}
