//! What a client is told instead of a result, in the forms that go over the wire.

use std::time::Duration;

use mcp_idempotent_core::{
    Action, CommitOutcome, ErrorKind, Interrupted, KeyKind, Policy, Refusal, Timestamp,
};
use rmcp::{
    ErrorData,
    model::{CallToolResult, ContentBlock, ErrorCode, MetaObject},
};
use serde_json::{Map, Value, json};

use crate::wire;

fn refusal_data(refusal: &Refusal) -> Map<String, Value> {
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
    error_data_for(refusal, KeyKind::Explicit)
}

pub(crate) fn error_data_for(refusal: &Refusal, key: KeyKind) -> ErrorData {
    let code = if refusal.kind().is_callers() {
        ErrorCode::INVALID_PARAMS
    } else {
        ErrorCode::INTERNAL_ERROR
    };
    ErrorData::new(
        code,
        refusal.message_for(key).to_owned(),
        Some(Value::Object(refusal_data(refusal))),
    )
}

/// A refusal as a tool result with `isError`, for hosts that hide protocol errors from the model.
#[must_use]
pub fn error_result(refusal: &Refusal) -> CallToolResult {
    error_result_for(refusal, KeyKind::Explicit)
}

pub(crate) fn error_result_for(refusal: &Refusal, key: KeyKind) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(refusal.message_for(key))]);
    result
        .meta
        .get_or_insert_with(MetaObject::default)
        .insert(wire::REFUSAL.into(), Value::Object(refusal_data(refusal)));
    result
}

/// Marks a result as a replay.
pub(crate) fn mark_replayed(meta: &mut Option<MetaObject>, at: Timestamp) {
    meta.get_or_insert_with(MetaObject::default)
        .insert(wire::REPLAYED.into(), json!({ "at": at.to_string() }));
}

/// Marks a result that is not recorded, because the store could not be reached.
pub(crate) fn mark_unrecorded(meta: &mut Option<MetaObject>) {
    meta.get_or_insert_with(MetaObject::default)
        .insert(wire::UNRECORDED.into(), unrecorded());
}

/// What the mark of such a result says.
pub(crate) fn unrecorded() -> Value {
    let message = "The call was executed, but its result could not be recorded. Keep it: a retry will be \
                   told that the outcome is unknown.";
    json!({ "message": message })
}

/// The content block that tells a model about a replay, if the server asks for it.
pub(crate) fn replay_notice(at: Timestamp) -> ContentBlock {
    ContentBlock::text(format!(
        "This call was already executed at {at}; this is its result. It was not executed again. \
         To run it again, send a new idempotency key."
    ))
}

pub(crate) fn interrupted(why: Interrupted, outcome: CommitOutcome) -> Refusal {
    let without_key = "The tool failed unexpectedly; nothing was committed. It may be sent again, exactly as it \
                       is.";
    let (kind, action, message) = match (why, outcome) {
        (Interrupted::OverTime, CommitOutcome::Unknown) => (
            ErrorKind::TransactionTooLong,
            Action::AskOperator,
            "The tool held its database transaction for longer than the server allows and was \
             stopped. What it wrote is rolled back; what it did elsewhere may have taken \
             effect. Ask the operator to look before repeating it.",
        ),
        (Interrupted::OverTime, _) => (
            ErrorKind::TransactionTooLong,
            Action::RetrySameKey,
            "The tool held its database transaction for longer than the server allows and was \
             stopped; nothing was committed. It may be sent again with the same key.",
        ),
        (_, CommitOutcome::NotCommitted) => (
            ErrorKind::HandlerPanicked,
            Action::RetrySameKey,
            "The tool failed unexpectedly; nothing was committed. It may be sent again with \
             the same key.",
        ),
        (_, CommitOutcome::Committed | CommitOutcome::Unknown) => (
            ErrorKind::HandlerPanicked,
            Action::AskOperator,
            "The tool failed unexpectedly, so it is not known whether it took effect. Ask the \
             operator to look before repeating it.",
        ),
    };
    let refusal = Refusal::new(kind, outcome, action, message);
    match action {
        Action::RetrySameKey => refusal.with_message_without_key(without_key),
        _ => refusal,
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
    // The argument comes first: a model can fill it, while hosts do not let it set `_meta`.
    let place = match policy.key_argument.as_deref() {
        Some(pointer) => {
            let name = pointer.strip_prefix('/').filter(|name| !name.contains('/'));
            format!(
                "in the argument `{}`, or in `_meta[\"{}\"]`",
                name.unwrap_or(pointer),
                wire::KEY
            )
        }
        None => format!("in `_meta[\"{}\"]`", wire::KEY),
    };
    Refusal::new(
        ErrorKind::KeyRequired,
        CommitOutcome::NotCommitted,
        Action::UseNewKey,
        format!(
            "This tool takes calls with an idempotency key only, so the call was not executed. \
             Make a new unique key for this intent, send it {place}, and send the same key again \
             on every retry."
        ),
    )
}

/// The call was executed, but its stored result cannot be read.
pub(crate) fn unreadable() -> Refusal {
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Committed,
        Action::AskOperator,
        "The call with this idempotency key was executed, but its stored result cannot be read. It \
         was not executed again.",
    )
    .with_message_without_key(
        "An equal call made earlier was executed, but its stored result cannot be read. This one was \
         not executed.",
    )
}

/// The call was executed, and its stored result is of an earlier form of the tool.
pub(crate) fn outdated() -> Refusal {
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Committed,
        Action::AskOperator,
        "The call with this idempotency key was executed and its effect is committed. The tool's results \
         have another form since, so the recorded one is in `result` of this error's data. It was not \
         executed again; do not repeat it with a new key.",
    )
    .with_message_without_key(
        "An equal call made earlier was executed and its effect is committed. The tool's results have \
         another form since, so the recorded one is in `result` of this error's data. This one was not \
         executed; do not repeat it.",
    )
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

pub(super) fn millis(duration: Duration) -> Value {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .into()
}
