//! What the server answered a protected call, and what its callers are told.

use std::{error::Error, ops::Range};

use bytes::Bytes;
use mcp_idempotent_core::{
    Action, CommitOutcome, ErrorKind, HandlerResult, OnDoubt, Refusal, Replay, ResultKind,
};
use serde_json::{Value, json, value::RawValue};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    call::KeyMaker,
    message::{Id, Message, is},
    settings::ServerError,
};
use crate::{
    call::{
        refusal,
        result::{stored, tag, unstored},
    },
    raw::{Edit, Members, edited, first_in, range},
    wire,
};

/// How a forwarded call ended.
pub(super) struct Answered {
    kind: ResultKind,
    body: Body,
}

enum Body {
    /// The server's message, with the place of its result.
    Message {
        message: Bytes,
        tag: u8,
        result: Range<usize>,
        /// Its share of the memory for answers.
        _held: Option<OwnedSemaphorePermit>,
    },
    Refused(Refusal),
}

impl Answered {
    /// The server's response.
    pub(super) fn by_server(
        message: Bytes,
        held: Option<OwnedSemaphorePermit>,
        key_maker: KeyMaker,
        server_error: ServerError,
    ) -> Self {
        let read = std::str::from_utf8(&message).ok().and_then(Message::of);
        let (kind, tag, result) = match &read {
            Some(response) => match (response.result(), response.error()) {
                (Some(result), _) => (kind_of(result, key_maker), tag_of(result), Some(result)),
                (None, Some(error)) => {
                    (kind_of_error(error, server_error), tag::ERROR, Some(error))
                }
                (None, None) => (ResultKind::Interrupted, tag::ERROR, None),
            },
            None => (ResultKind::Interrupted, tag::ERROR, None),
        };
        let result = result.map_or(0..0, |result| range(&message, result));
        Self {
            kind,
            body: Body::Message {
                message,
                tag,
                result,
                _held: held,
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

    /// The server's answer was too long to be read.
    pub(super) fn too_long() -> Self {
        Self {
            kind: ResultKind::Interrupted,
            body: Body::Refused(Refusal::new(
                ErrorKind::ResultTooLarge,
                CommitOutcome::Unknown,
                Action::AskOperator,
                "The call was sent to the server, and the tool may have run, but the answer is too \
                 long for the proxy to read. Look whether the call took effect before repeating it.",
            )),
        }
    }

    /// The answer for the caller whose call was forwarded.
    pub(super) fn told(self, id: &Id, key_maker: KeyMaker) -> Bytes {
        match self.body {
            Body::Message { message, .. } => under(&message, id),
            Body::Refused(refusal) => refused(&refusal, id, key_maker),
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

fn tag_of(result: &RawValue) -> u8 {
    let result_type = Members::of(result.get()).and_then(|it| it.get("resultType"));
    if is(result_type, "input_required") {
        tag::INPUT_REQUIRED
    } else if is(result_type, "task") {
        tag::TASK
    } else {
        tag::RESULT
    }
}

/// What a result means for the record.
fn kind_of(result: &RawValue, key_maker: KeyMaker) -> ResultKind {
    match tag_of(result) {
        tag::INPUT_REQUIRED => return ResultKind::InputRequired,
        tag::TASK => return ResultKind::Task,
        _ => {}
    }
    let Some(members) = Members::of(result.get()) else {
        return ResultKind::Success;
    };
    if members.get("isError").is_none_or(|it| it.get() != "true") {
        return ResultKind::Success;
    }
    let meta = members
        .get("_meta")
        .and_then(|meta| Members::of(meta.get()));
    if let Some(refusal) = meta.and_then(|meta| meta.get(wire::REFUSAL)) {
        return kind_of_refusal(refusal);
    }
    match key_maker {
        KeyMaker::Client | KeyMaker::Model => ResultKind::ErrorResult,
        // Recorded under a derived key, a passing failure would stick for the whole window.
        KeyMaker::Nobody => ResultKind::NotExecuted,
    }
}

/// What a JSON-RPC error means for the record.
fn kind_of_error(error: &RawValue, server_error: ServerError) -> ResultKind {
    let data = Members::of(error.get()).and_then(|error| error.get("data"));
    let data_type = data.and_then(|data| Members::of(data.get())?.text("type"));
    if let (Some(data), true) = (
        data,
        data_type.is_some_and(|it| refusal::is_a_type_of_ours(&it)),
    ) {
        return kind_of_refusal(data);
    }
    match server_error {
        ServerError::NothingHappened => ResultKind::NotExecuted,
        ServerError::MayHaveActed => ResultKind::Interrupted,
    }
}

/// A refusal of a server that recognises retries itself. If it asks for one, it has to get it.
fn kind_of_refusal(data: &RawValue) -> ResultKind {
    let data = Members::of(data.get());
    let says = |name, text: &str| is(data.as_ref().and_then(|it| it.get(name)), text);
    let asks_again =
        says("action", Action::RetrySameKey.as_str()) || says("action", Action::Wait.as_str());
    if asks_again || says("outcome", CommitOutcome::NotCommitted.as_str()) {
        ResultKind::NotExecuted
    } else {
        ResultKind::Interrupted
    }
}

/// The response under the caller's own id.
fn under(message: &Bytes, id: &Id) -> Bytes {
    let read = std::str::from_utf8(message).ok().and_then(Message::of);
    match read.and_then(|response| response.id()) {
        Some(raw) => edited(message, &mut [(range(message, raw), id.spelt())]),
        None => message.clone(),
    }
}

/// A recorded result under the caller's own id, marked as a replay.
pub(super) fn replayed(replay: &Replay, id: &Id, key_maker: KeyMaker, announce: bool) -> Bytes {
    let Some((tag, json)) = unstored(&replay.response) else {
        tracing::error!("a stored result could not be read");
        return refused(&refusal::unreadable(), id, key_maker);
    };
    if tag == tag::ERROR {
        return response(id, "error", json);
    }
    match replay.at {
        None => response(id, "result", json),
        Some(at) => {
            let notice = announce.then(|| json!(refusal::replay_notice(at)).to_string());
            let mark = json!({ "at": at.to_string() }).to_string();
            let marked = marked(
                json,
                &mark,
                notice.filter(|_| tag == tag::RESULT).as_deref(),
            );
            response(id, "result", &marked)
        }
    }
}

/// `result` with the mark of a replay in its `_meta`, and a notice at the end of its content.
fn marked(result: &str, mark: &str, notice: Option<&str>) -> String {
    let Some(members) = Members::of(result) else {
        return result.to_owned();
    };
    let text = result.as_bytes();
    let object = |raw: &'_ str| Members::of(raw).is_some();
    let comma = |is_empty| if is_empty { "" } else { "," };
    let name = wire::REPLAYED;
    let (at, inserted) = match members.get("_meta").filter(|it| it.get() != "null") {
        Some(meta) if object(meta.get()) => {
            match Members::of(meta.get()).and_then(|it| it.get(name)) {
                // The server marks replays itself.
                Some(theirs) => (range(text, theirs), mark.to_owned()),
                None => {
                    let comma = comma(Members::of(meta.get()).is_some_and(|it| it.is_empty()));
                    (first_in(text, meta), format!(r#""{name}":{mark}{comma}"#))
                }
            }
        }
        Some(_) => return result.to_owned(),
        None => {
            let meta = format!(r#"{{"{name}":{mark}}}"#);
            match members.get("_meta") {
                Some(null) => (range(text, null), meta),
                None => {
                    let comma = comma(members.is_empty());
                    (1..1, format!(r#""_meta":{meta}{comma}"#))
                }
            }
        }
    };
    let content = members
        .get("content")
        .zip(notice)
        .and_then(|(content, notice)| {
            let blocks: Vec<&RawValue> = serde_json::from_str(content.get()).ok()?;
            let end = range(text, content).end - 1;
            let comma = comma(blocks.is_empty());
            Some((end..end, format!("{comma}{notice}")))
        });
    let mut edits: Vec<Edit<'_>> = vec![(at, &inserted)];
    if let Some((at, block)) = &content {
        edits.push((at.clone(), block));
    }
    String::from_utf8_lossy(&edited(text, &mut edits)).into_owned()
}

/// A refusal, in the form that reaches whoever made the key: client code reads JSON-RPC errors, a model sees
/// results only.
pub(super) fn refused(refusal: &Refusal, id: &Id, key_maker: KeyMaker) -> Bytes {
    match key_maker {
        KeyMaker::Client => response(
            id,
            "error",
            &json!(refusal::error_data(refusal)).to_string(),
        ),
        KeyMaker::Model | KeyMaker::Nobody => response(
            id,
            "result",
            &json!(refusal::error_result(refusal)).to_string(),
        ),
    }
}

/// The answer to a call that cannot be protected.
pub(super) fn invalid(id: &Id, message: &str) -> Bytes {
    let error: Value = json!({ "code": -32602, "message": message });
    response(id, "error", &error.to_string())
}

fn response(id: &Id, member: &str, json: &str) -> Bytes {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{},\"{member}\":{json}}}\n",
        id.spelt()
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_changes_no_other_byte() {
        for (result, notice, expected) in [
            (
                r#"{}"#,
                None,
                r#"{"_meta":{"io.github.mcp-idempotent/replayed":1}}"#,
            ),
            (
                r#"{ "x" : 1.50 }"#,
                None,
                r#"{"_meta":{"io.github.mcp-idempotent/replayed":1}, "x" : 1.50 }"#,
            ),
            (
                r#"{"_meta": {},"content":[]}"#,
                Some("2"),
                r#"{"_meta": {"io.github.mcp-idempotent/replayed":1},"content":[2]}"#,
            ),
            (
                r#"{"content":[ 0 ],"_meta":{"a":"b"}}"#,
                Some("2"),
                r#"{"content":[ 0 ,2],"_meta":{"io.github.mcp-idempotent/replayed":1,"a":"b"}}"#,
            ),
            (
                r#"{"_meta":null}"#,
                None,
                r#"{"_meta":{"io.github.mcp-idempotent/replayed":1}}"#,
            ),
            (
                r#"{"_meta":{"io.github.mcp-idempotent/replayed":{"at":"x"}}}"#,
                None,
                r#"{"_meta":{"io.github.mcp-idempotent/replayed":1}}"#,
            ),
            (r#"7"#, Some("2"), r#"7"#),
        ] {
            assert_eq!(marked(result, "1", notice), expected);
        }
    }

    fn kind(message: &str, key_maker: KeyMaker, error: ServerError) -> ResultKind {
        Answered::by_server(Bytes::from(message.to_owned()), None, key_maker, error).kind
    }

    #[test]
    fn answers_mean_what_the_page_says() {
        use KeyMaker::{Client, Model, Nobody};
        use ResultKind as K;
        use ServerError::{MayHaveActed, NothingHappened};
        for (message, key_maker, error, expected) in [
            (
                r#"{"id":1,"result":{"content":[]}}"#,
                Nobody,
                MayHaveActed,
                K::Success,
            ),
            (
                r#"{"id":1,"result":{"isError":false}}"#,
                Client,
                MayHaveActed,
                K::Success,
            ),
            (
                r#"{"id":1,"result":{"isError":true}}"#,
                Client,
                NothingHappened,
                K::ErrorResult,
            ),
            (
                r#"{"id":1,"result":{"isError":true}}"#,
                Model,
                NothingHappened,
                K::ErrorResult,
            ),
            (
                r#"{"id":1,"result":{"isError":true}}"#,
                Nobody,
                MayHaveActed,
                K::NotExecuted,
            ),
            (
                r#"{"id":1,"result":{"resultType":"input_required"}}"#,
                Client,
                NothingHappened,
                K::InputRequired,
            ),
            (
                r#"{"id":1,"result":{"resultType":"task"}}"#,
                Client,
                NothingHappened,
                K::Task,
            ),
            (
                r#"{"id":1,"error":{"code":1,"message":""}}"#,
                Client,
                NothingHappened,
                K::NotExecuted,
            ),
            (
                r#"{"id":1,"error":{"code":1,"message":""}}"#,
                Nobody,
                MayHaveActed,
                K::Interrupted,
            ),
            (r#"{"id":1}"#, Nobody, NothingHappened, K::Interrupted),
            (
                r#"{"id":1,"error":{"data":{"type":"idempotency_outcome_unknown","outcome":"unknown","action":"ask_operator"}}}"#,
                Client,
                NothingHappened,
                K::Interrupted,
            ),
            (
                r#"{"id":1,"error":{"data":{"type":"idempotency_key_in_progress","outcome":"unknown","action":"wait"}}}"#,
                Client,
                MayHaveActed,
                K::NotExecuted,
            ),
            (
                r#"{"id":1,"result":{"isError":true,"_meta":{"io.github.mcp-idempotent/refusal":{"outcome":"unknown","action":"ask_operator"}}}}"#,
                Client,
                NothingHappened,
                K::Interrupted,
            ),
        ] {
            assert_eq!(kind(message, key_maker, error), expected, "{message}");
        }
    }
}
