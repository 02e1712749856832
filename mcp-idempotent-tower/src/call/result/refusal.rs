//! What a client is told instead of a result, in the forms that go over the wire.

use std::time::Duration;

use mcp_idempotent_core::{
    Action, CommitOutcome, ErrorKind, Interrupted, OnDoubt, Policy, Refusal, refusal::after_acting,
};
use rmcp::{
    ErrorData,
    model::{CallToolResult, ContentBlock, ErrorCode, MetaObject},
};
use serde_json::{Map, Value};

#[cfg(feature = "relay")]
use crate::call::ToolResult;
use crate::wire;

pub(super) fn refusal_data(refusal: &Refusal) -> Map<String, Value> {
    let mut data = Map::new();
    data.insert("type".into(), refusal.kind().as_str().into());
    data.insert("outcome".into(), refusal.outcome().as_str().into());
    data.insert("action".into(), refusal.action().as_str().into());
    if let Some(after) = refusal.retry_after() {
        data.insert("retryAfterMs".into(), millis(after));
    }
    data
}

/// A refusal as a JSON-RPC error: `-32602` where the caller must act, `-32603` where the server
/// failed. `data` is `{type, outcome, action, retryAfterMs?}`.
#[must_use]
pub fn error_data(refusal: &Refusal) -> ErrorData {
    worded(refusal, refusal.message().to_owned())
}

/// A refusal with another sentence.
pub(crate) fn worded(refusal: &Refusal, sentence: String) -> ErrorData {
    let code = if refusal.kind().is_callers() {
        ErrorCode::INVALID_PARAMS
    } else {
        ErrorCode::INTERNAL_ERROR
    };
    ErrorData::new(code, sentence, Some(Value::Object(refusal_data(refusal))))
}

/// A refusal as a tool result with `isError`, for readers who see no protocol errors.
#[must_use]
pub fn error_result(refusal: &Refusal) -> CallToolResult {
    into_result(error_data(refusal))
}

/// An error of ours as a tool result. Its data is in `_meta`: structured content would have to fit the tool's
/// output schema.
pub(crate) fn into_result(error: ErrorData) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(error.message)]);
    result
        .meta
        .get_or_insert_with(MetaObject::default)
        .insert(wire::REFUSAL.into(), error.data.unwrap_or_default());
    result
}

/// Whether an error is one of ours.
pub(crate) fn is_ours(error: &ErrorData) -> bool {
    let kind = error.data.as_ref().and_then(|data| data.get("type"));
    kind.and_then(Value::as_str).is_some_and(is_a_type_of_ours)
}

/// Whether a result of ours is a refusal.
pub(crate) fn is_refusal(result: &CallToolResult) -> bool {
    let meta = result.meta.as_ref();
    result.is_error == Some(true) && meta.is_some_and(|meta| meta.contains_key(wire::REFUSAL))
}

/// Whether a result passes on the refusal of another server, over any number of servers.
pub(crate) fn is_refusal_of_upstream(result: &CallToolResult) -> bool {
    let upstream = |said: &Value| said.get(wire::UPSTREAM).cloned();
    let meta = result.meta.as_ref();
    let first = meta.and_then(|meta| meta.get(wire::UPSTREAM).cloned());
    result.is_error == Some(true)
        && std::iter::successors(first, upstream).any(|said| said.get(wire::REFUSAL).is_some())
}

/// A refusal as a member of a JSON-RPC response: its name and its JSON.
#[cfg(feature = "relay")]
pub(crate) fn json_of(refused: ToolResult) -> (&'static str, String) {
    match refused {
        Ok(rmcp::model::CallToolResponse::Complete(result)) => {
            ("result", serde_json::json!(result).to_string())
        }
        Ok(_) => unreachable!("a refusal is an error or a complete result"),
        Err(error) => ("error", serde_json::json!(error).to_string()),
    }
}

/// The JSON of a content block with this text.
#[cfg(feature = "relay")]
pub(crate) fn text_block(text: String) -> String {
    serde_json::json!(ContentBlock::text(text)).to_string()
}

/// The handler was stopped or panicked, and what it wrote is rolled back.
pub(crate) fn interrupted(why: Interrupted) -> Refusal {
    let (kind, message, without_key) = match why {
        Interrupted::OverTime => (
            ErrorKind::TransactionTooLong,
            "The tool held its database transaction for longer than the server allows and was \
             stopped; nothing was committed. It may be sent again with the same key.",
            "The tool held its database transaction for longer than the server allows and was \
             stopped; nothing was committed. It may be sent again, exactly as it is.",
        ),
        _ => (
            ErrorKind::HandlerPanicked,
            "The tool failed unexpectedly; nothing was committed. It may be sent again with \
             the same key.",
            "The tool failed unexpectedly; nothing was committed. It may be sent again, exactly \
             as it is.",
        ),
    };
    Refusal::new(
        kind,
        CommitOutcome::NotCommitted,
        Action::RetrySameKey,
        message,
    )
    .with_message_without_key(without_key)
}

/// The same, if the handler may have acted elsewhere. The action is that of a later call.
pub(crate) fn interrupted_after_acting(why: Interrupted, on_doubt: OnDoubt) -> Refusal {
    match why {
        Interrupted::OverTime => after_acting(
            ErrorKind::TransactionTooLong,
            "The tool held its database transaction for longer than the server allows and was stopped. \
             What it wrote is rolled back; what it did elsewhere may have taken effect.",
            on_doubt,
        ),
        _ => after_acting(
            ErrorKind::HandlerPanicked,
            "The tool failed unexpectedly, so it is not known whether it took effect.",
            on_doubt,
        ),
    }
}

/// The tool succeeded without taking the transaction, so its effect cannot be part of the record.
pub(crate) fn not_borrowed() -> Refusal {
    let message = "This tool is declared to write through the call's transaction, but it returned \
                   without having taken it. What it did elsewhere is not undone, so it is not known \
                   whether it took effect. Its author must take `Tx` in the handler, or declare the \
                   tool with `Rule::lease`.";
    tracing::error!(
        message,
        "a tool in transaction mode did not take its transaction"
    );
    Refusal::new(
        ErrorKind::Misconfigured,
        CommitOutcome::Unknown,
        Action::AskOperator,
        message,
    )
}

pub(crate) fn key_required(policy: &Policy) -> Refusal {
    let remedy = match policy.key_argument.as_deref().map(argument_name) {
        Some(name) => format!(
            "Make a new unique key for this intent, send it in the argument `{name}`, and send the same key \
             again on every retry."
        ),
        None => format!(
            "The program that sends the call has to put one into `_meta[\"{}\"]`: a new unique key for each \
             intent, and the same key on every retry. A model cannot do that; tell the user.",
            wire::KEY
        ),
    };
    Refusal::new(
        ErrorKind::KeyRequired,
        CommitOutcome::NotCommitted,
        Action::UseNewKey,
        format!("This tool requires an idempotency key, so the call was not executed. {remedy}"),
    )
}

/// How an argument is called to its reader: by its name, or by its JSON pointer if it is not top-level.
pub(crate) fn argument_name(pointer: &str) -> &str {
    let name = pointer.strip_prefix('/');
    name.filter(|name| !name.contains('/')).unwrap_or(pointer)
}

/// The author's code panicked before the handler began. The outcome is unknown, because an earlier call
/// with the key may have committed.
pub(crate) fn panicked_before() -> Refusal {
    Refusal::new(
        ErrorKind::HandlerPanicked,
        CommitOutcome::Unknown,
        Action::RetrySameKey,
        "The server failed unexpectedly before the tool began, so this call was not executed. It may \
         be sent again, exactly as it is.",
    )
}

/// The author's code panicked in a request about calls.
pub(crate) fn panicked_aside() -> ErrorData {
    error_data(&Refusal::new(
        ErrorKind::HandlerPanicked,
        CommitOutcome::Unknown,
        Action::RetrySameKey,
        "The server failed unexpectedly and cannot answer this request. It may be sent again.",
    ))
}

fn of_a_layer(kind: &str, outcome: CommitOutcome, message: &'static str) -> ErrorData {
    let mut data = Map::new();
    data.insert("type".into(), kind.into());
    data.insert("outcome".into(), outcome.as_str().into());
    data.insert("action".into(), Action::RetrySameKey.as_str().into());
    if outcome == CommitOutcome::NotCommitted {
        data.insert("retryAfterMs".into(), 1000.into());
    }
    ErrorData::internal_error(message, Some(Value::Object(data)))
}

/// Whether this `type` of an error's `data` is reserved for us.
pub(crate) fn is_a_type_of_ours(kind: &str) -> bool {
    kind.starts_with("idempotency_")
        || [
            wire::TIMED_OUT,
            wire::FAILED,
            wire::OVERLOADED,
            wire::NOT_CALLED,
        ]
        .contains(&kind)
}

/// Whether an error of ours says that the handler may have been cut off, for instance in a server below
/// that has layers of its own.
pub(crate) fn is_of_unknown_outcome(error: &ErrorData) -> bool {
    let kind = error.data.as_ref().and_then(|data| data.get("type"));
    kind.is_some_and(|kind| kind == wire::TIMED_OUT || kind == wire::FAILED)
}

/// A timeout above or below us.
pub(crate) fn timed_out() -> ErrorData {
    of_a_layer(
        wire::TIMED_OUT,
        CommitOutcome::Unknown,
        "The call took longer than the server waits, so it is not known whether it took effect. If \
         it was sent with an idempotency key, send the same call with the same key to get its \
         result; without one, look before repeating it.",
    )
}

/// A load limit refused the call.
pub(crate) fn overloaded() -> ErrorData {
    of_a_layer(
        wire::OVERLOADED,
        CommitOutcome::NotCommitted,
        "The server is too busy, so the call was not executed. Wait, then send it again with the \
         same key.",
    )
}

/// A service above the handler was not ready for the call.
pub(crate) fn not_called() -> ErrorData {
    of_a_layer(
        wire::NOT_CALLED,
        CommitOutcome::NotCommitted,
        "The server could not take the call, so it was not executed. Send it again with the same \
         key.",
    )
}

/// A service gave up on the call.
pub(crate) fn failed() -> ErrorData {
    of_a_layer(
        wire::FAILED,
        CommitOutcome::Unknown,
        "The call failed in the server, and it is not known whether it took effect. If it was sent \
         with an idempotency key, send the same call with the same key to find out; without one, \
         look before repeating it.",
    )
}

pub(in crate::call) fn millis(duration: Duration) -> Value {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .into()
}

#[cfg(test)]
mod tests {
    use mcp_idempotent_core::KeyKind;

    use super::*;

    #[test]
    fn every_caller_hears_why_the_handler_was_interrupted() {
        for (why, said) in [
            (Interrupted::OverTime, "for longer than"),
            (Interrupted::Panicked, "failed unexpectedly"),
        ] {
            let refusals = [
                interrupted(why),
                interrupted_after_acting(why, OnDoubt::Fail),
                interrupted_after_acting(why, OnDoubt::Rerun),
                interrupted_after_acting(why, OnDoubt::Verify),
            ];
            for refusal in refusals {
                for key in [KeyKind::Explicit, KeyKind::Derived] {
                    let message = refusal.message_for(key);
                    assert!(message.contains(said), "{message}");
                }
                let without_key = refusal.message_for(KeyKind::Derived);
                assert!(!without_key.contains("same key"), "{without_key}");
            }
        }
    }
}
