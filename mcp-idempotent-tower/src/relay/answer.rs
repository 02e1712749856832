//! What the server answered to a protected call, and what its callers are told.

use std::{error::Error, ops::Range};

use bytes::Bytes;
use mcp_idempotent_core::{
    Action, CommitOutcome, ErrorKind, HandlerResult, OnDoubt, Refusal, ResultKind,
};
use serde_json::{Value, json, value::RawValue};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    message::{Id, Message, is},
    rule::Believed,
    settings::ServerError,
};
use crate::{
    call::{
        key::KeyMaker,
        reader::Reader,
        refusal,
        result::{stored, tag},
    },
    raw::{Members, edited, range},
    wire,
};

/// How a forwarded call ended.
pub(super) struct Answered {
    kind: ResultKind,
    body: Body,
}

enum Body {
    /// The server's message, with the places of its id and its result.
    Message {
        message: Bytes,
        id: Option<Range<usize>>,
        tag: u8,
        result: Range<usize>,
        /// Its share of the memory for answers.
        held: Option<OwnedSemaphorePermit>,
    },
    Refused(Refusal),
}

/// An answer on its way to its caller. It keeps its share of the memory for answers until it is written.
pub(super) struct Outgoing {
    pub(super) bytes: Bytes,
    _held: Option<OwnedSemaphorePermit>,
}

impl Outgoing {
    /// The same answer, with something added.
    pub(super) fn map(self, edit: impl FnOnce(Bytes) -> Bytes) -> Self {
        Self {
            bytes: edit(self.bytes),
            ..self
        }
    }
}

impl From<Bytes> for Outgoing {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, _held: None }
    }
}

impl Answered {
    /// The server's response.
    pub(super) fn by_server(
        message: Bytes,
        held: Option<OwnedSemaphorePermit>,
        key_maker: KeyMaker,
        believed: Believed,
    ) -> Self {
        let read = std::str::from_utf8(&message).ok().and_then(Message::of);
        let (kind, tag, result) = match &read {
            Some(response) => match (response.result(), response.error()) {
                (Some(result), _) => {
                    let members = Members::of(result.get());
                    let tag = tag_of(members.as_ref());
                    (
                        kind_of(members.as_ref(), tag, key_maker, believed),
                        tag,
                        Some(result),
                    )
                }
                (None, Some(error)) => (kind_of_error(error, believed), tag::ERROR, Some(error)),
                (None, None) => (ResultKind::Interrupted, tag::ERROR, None),
            },
            None => (ResultKind::Interrupted, tag::ERROR, None),
        };
        let result = result.map_or(0..0, |result| range(&message, result));
        let id = read.and_then(|response| Some(range(&message, response.id()?)));
        Self {
            kind,
            body: Body::Message {
                message,
                id,
                tag,
                result,
                held,
            },
        }
    }

    /// The call never reached the server.
    pub(super) fn not_sent() -> Self {
        Self {
            kind: ResultKind::NotExecuted,
            body: Body::Refused(Refusal::new(
                ErrorKind::NotCommitted,
                CommitOutcome::NotCommitted,
                Action::RetrySameKey,
                "The server has ended or takes no more calls, so this call was not executed. Send it \
                 again, exactly as it is, once the server runs again.",
            )),
        }
    }

    /// The call was sent, and no answer can come any more.
    pub(super) fn lost(on_doubt: OnDoubt) -> Self {
        let (action, message) = match on_doubt {
            OnDoubt::Fail => (
                Action::AskOperator,
                "The call was sent to the server, and the tool may have run, but the server ended \
                 before it answered. Look whether the call took effect before repeating it.",
            ),
            _ => (
                Action::RetrySameKey,
                "The call was sent to the server, and the tool may have run, but the server ended \
                 before it answered. If the same call is sent again, it runs again.",
            ),
        };
        Self {
            kind: ResultKind::Interrupted,
            body: Body::Refused(Refusal::new(
                ErrorKind::OutcomeUnknown,
                CommitOutcome::Unknown,
                action,
                message,
            )),
        }
    }

    /// The server's answer was too long to be read, or no JSON.
    pub(super) fn unreadable() -> Self {
        Self {
            kind: ResultKind::Interrupted,
            body: Body::Refused(Refusal::new(
                ErrorKind::ResultTooLarge,
                CommitOutcome::Unknown,
                Action::AskOperator,
                "The call was sent to the server, and the tool may have run, but the answer is too \
                 long for the proxy to read, or no JSON. Look whether the call took effect before \
                 repeating it.",
            )),
        }
    }

    /// Whether it is a refusal of ours.
    pub(super) const fn is_refusal(&self) -> bool {
        matches!(self.body, Body::Refused(_))
    }

    /// The answer for the caller whose call was forwarded.
    pub(super) fn for_caller(self, id: &Id, reader: &Reader) -> Outgoing {
        match self.body {
            Body::Message {
                message,
                id: at,
                held,
                ..
            } => Outgoing {
                bytes: match at {
                    Some(at) => edited(&message, &mut [(at, id.spelt())]),
                    None => message,
                },
                _held: held,
            },
            Body::Refused(refusal) => refused(&refusal, id, reader).into(),
        }
    }
}

impl HandlerResult for Answered {
    fn kind(&self) -> ResultKind {
        self.kind
    }

    fn encode(&self) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
        match &self.body {
            Body::Message {
                message,
                tag,
                result,
                ..
            } => Ok(stored(*tag, std::str::from_utf8(&message[result.clone()])?)),
            Body::Refused(refusal) => Err(refusal.message().to_owned().into()),
        }
    }
}

/// What kind of result has these members. `None`: it is not an object.
fn tag_of(result: Option<&Members<'_>>) -> u8 {
    let result_type = result.and_then(|it| it.get("resultType"));
    if is(result_type, "input_required") {
        tag::INPUT_REQUIRED
    } else if is(result_type, "task") {
        tag::TASK
    } else {
        tag::RESULT
    }
}

/// What a result means for the record.
fn kind_of(
    result: Option<&Members<'_>>,
    tag: u8,
    key_maker: KeyMaker,
    believed: Believed,
) -> ResultKind {
    match tag {
        tag::INPUT_REQUIRED => return ResultKind::InputRequired,
        tag::TASK => return ResultKind::Task,
        _ => {}
    }
    let Some(members) = result else {
        return ResultKind::Success;
    };
    if members.get("isError").is_none_or(|it| it.get() != "true") {
        return ResultKind::Success;
    }
    let meta = members
        .get("_meta")
        .and_then(|meta| Members::of(meta.get()));
    let says = |name| meta.as_ref().and_then(|meta| meta.get(name));
    if let Some(refusal) = says(wire::REFUSAL).or_else(|| says(wire::IN_DOUBT)) {
        return kind_of_refusal(refusal, believed);
    }
    match key_maker {
        KeyMaker::Client | KeyMaker::Model => ResultKind::ErrorResult,
        // Recorded under a derived key, a transient failure would stick for the whole window.
        KeyMaker::Nobody => ResultKind::NotExecuted,
    }
}

/// What a JSON-RPC error means for the record.
fn kind_of_error(error: &RawValue, believed: Believed) -> ResultKind {
    let data = Members::of(error.get()).and_then(|error| error.get("data"));
    let members = data.and_then(|data| Members::of(data.get()));
    let kind = members.as_ref().and_then(|data| data.text("type"));
    let refusal = data.filter(|_| kind.is_some_and(|kind| refusal::is_a_type_of_ours(&kind)));
    match refusal.or_else(|| members?.get(wire::IN_DOUBT)) {
        Some(refusal) => kind_of_refusal(refusal, believed),
        None => kind_of_other_error(believed),
    }
}

const fn kind_of_other_error(believed: Believed) -> ResultKind {
    match believed.server_error {
        ServerError::NothingHappened => ResultKind::NotExecuted,
        ServerError::MayHaveActed => ResultKind::Interrupted,
    }
}

/// A refusal that neither asks for a retry nor says that nothing was committed leaves the call in
/// doubt. Any other refusal frees the key, if the tool recognises retries itself. From other tools
/// it proves no more than any other error.
fn kind_of_refusal(data: &RawValue, believed: Believed) -> ResultKind {
    let data = Members::of(data.get());
    let says = |name, text: &str| is(data.as_ref().and_then(|it| it.get(name)), text);
    let asks_again =
        says("action", Action::RetrySameKey.as_str()) || says("action", Action::Wait.as_str());
    if !asks_again && !says("outcome", CommitOutcome::NotCommitted.as_str()) {
        ResultKind::Interrupted
    } else if believed.refusals {
        ResultKind::NotExecuted
    } else {
        kind_of_other_error(believed)
    }
}

/// A refusal, in the form that its reader gets.
pub(super) fn refused(refusal: &Refusal, id: &Id, reader: &Reader) -> Bytes {
    let (member, json) = refusal::json_of(reader.refused(refusal));
    response(id, member, &json)
}

/// The answer to a call that cannot be protected.
pub(super) fn invalid(id: &Id, message: &str) -> Bytes {
    let error: Value = json!({ "code": -32602, "message": message });
    response(id, "error", &error.to_string())
}

/// A response with this result or error.
pub(super) fn response(id: &Id, member: &str, json: &str) -> Bytes {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{},\"{member}\":{json}}}\n",
        id.spelt()
    )
    .into()
}

#[cfg(test)]
mod tests;
