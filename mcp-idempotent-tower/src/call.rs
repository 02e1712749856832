//! A tool call taken apart, by moving.

use std::{borrow::Cow, fmt, mem};

use mcp_idempotent_core::{Action, CommitOutcome, ErrorKind};
use mcp_idempotent_core::{IdempotencyKey, InvalidKey, Refusal, engine::Round};
use rmcp::{
    ErrorData, RoleServer,
    handler::server::{common::FromContextPart, tool::ToolCallContext},
    model::{InputResponses, JsonObject, RequestId},
    service::RequestContext,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{provenance, result::ToolResult, wire};

/// Everything of a call, moved out of rmcp's context and put back before the handler's own
/// extractors run.
#[derive(Debug)]
#[doc(hidden)]
pub struct Call {
    pub(crate) name: Cow<'static, str>,
    pub(crate) arguments: Option<JsonObject>,
    pub(crate) input_responses: Option<InputResponses>,
    pub(crate) request_state: Option<String>,
    pub(crate) context: RequestContext<RoleServer>,
}

impl<S> FromContextPart<ToolCallContext<'_, S>> for Call {
    fn from_context_part(context: &mut ToolCallContext<'_, S>) -> Result<Self, ErrorData> {
        let peer = context.request_context.peer.clone();
        let empty = RequestContext::new(RequestId::Number(0), peer);
        Ok(Self {
            name: mem::take(&mut context.name),
            arguments: context.arguments.take(),
            input_responses: context.input_responses.take(),
            request_state: context.request_state.take(),
            context: mem::replace(&mut context.request_context, empty),
        })
    }
}

impl Call {
    /// Puts the call back together, for the extractors of the author's own parameters.
    pub fn into_parts<S>(self, server: &S) -> Parts<'_, S> {
        let mut params = rmcp::model::CallToolRequestParams::new(self.name);
        params.arguments = self.arguments;
        params.input_responses = self.input_responses;
        params.request_state = self.request_state;
        Parts(ToolCallContext::new(server, params, self.context))
    }

    /// What is done to the answer, which is ours: sealed, where the way to the client goes through
    /// a service of ours. The handler is not to know: what it asks of other servers in this process
    /// is an upstream's to it.
    pub(crate) fn sealing(&mut self) -> fn(ToolResult) -> ToolResult {
        match self.context.extensions.remove::<provenance::Inside>() {
            Some(provenance::Inside) => provenance::seal,
            None => |result| result,
        }
    }

    /// The key that the client sent, from the first place that has one.
    pub(crate) fn key(&self, argument: Option<&str>) -> Result<Option<IdempotencyKey>, Refusal> {
        let meta = &self.context.meta;
        // A key argument is often an optional field that a model fills with null.
        let argument = argument
            .zip(self.arguments.as_ref())
            .and_then(|(pointer, arguments)| at_pointer(arguments, pointer))
            .filter(|value| !value.is_null());
        let mut key: Option<&str> = None;
        for value in [meta.get(wire::KEY), meta.get(wire::KEY_ALIAS), argument]
            .into_iter()
            .flatten()
        {
            let Value::String(value) = value else {
                return Err(invalid(&InvalidKey::not_a_string()));
            };
            if key.is_some_and(|key| key != value) {
                return Err(contradiction());
            }
            key = Some(value);
        }
        key.map(IdempotencyKey::new)
            .transpose()
            .map_err(|error| invalid(&error))
    }

    /// Which round of a multi round-trip call this is.
    pub(crate) fn round(&self) -> Round {
        if self.request_state.is_none() && self.input_responses.is_none() {
            return None;
        }
        let mut digest = Sha256::new();
        if let Some(state) = &self.request_state {
            digest.update([1]);
            digest.update((state.len() as u64).to_be_bytes());
            digest.update(state);
        }
        if let Some(responses) = &self.input_responses {
            digest.update([2]);
            for (name, response) in responses {
                for text in [name.as_str(), &response.to_string()] {
                    digest.update((text.len() as u64).to_be_bytes());
                    digest.update(text);
                }
            }
        }
        Some(digest.finalize().into())
    }
}

/// What the author's extractors take their values from, in the order of the parameters.
#[doc(hidden)]
pub struct Parts<'a, S>(ToolCallContext<'a, S>);

impl<S> fmt::Debug for Parts<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parts").field(&self.0.name).finish()
    }
}

impl<'a, S> Parts<'a, S> {
    /// The value of one parameter.
    ///
    /// # Errors
    ///
    /// The extractor refused the call. The author's function is not called.
    pub fn extract<T: FromContextPart<ToolCallContext<'a, S>>>(&mut self) -> Result<T, NotCalled> {
        T::from_context_part(&mut self.0).map_err(NotCalled)
    }
}

/// An extractor refused the call.
#[derive(Debug)]
#[doc(hidden)]
pub struct NotCalled(pub(crate) ErrorData);

/// As [`Value::pointer`], on an object that is no [`Value`] of its own.
pub(crate) fn at_pointer<'a>(arguments: &'a JsonObject, pointer: &str) -> Option<&'a Value> {
    let rest = pointer.strip_prefix('/')?;
    let (first, rest) = match rest.find('/') {
        Some(end) => rest.split_at(end),
        None => (rest, ""),
    };
    let first = first.replace("~1", "/").replace("~0", "~");
    arguments.get(&first)?.pointer(rest)
}

fn invalid(error: &InvalidKey) -> Refusal {
    Refusal::new(
        ErrorKind::KeyInvalid,
        CommitOutcome::NotCommitted,
        Action::UseNewKey,
        format!("The call was not executed: {error}."),
    )
}

fn contradiction() -> Refusal {
    Refusal::new(
        ErrorKind::KeyInvalid,
        CommitOutcome::NotCommitted,
        // One of the two may be spent already, so a third one could run the call twice.
        Action::RetrySameKey,
        "The call was not executed: it carries two different idempotency keys. Send one: the key of \
         your first attempt, in one place only.",
    )
}
