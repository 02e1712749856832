//! Every name that goes over the wire.

use std::time::Duration;

use mcp_idempotent_core::{KeyRequirement, Refusal, Timestamp};
use rmcp::{
    ErrorData,
    model::{CallToolResult, ContentBlock, ErrorCode, MetaObject},
};
use serde_json::{Map, Value, json};

use crate::options::{Mode, ToolOptions};

/// Where a client puts its key: `_meta["idempotency-key"]`.
pub const KEY: &str = "idempotency-key";

/// The namespaced alias of [`KEY`].
pub const KEY_ALIAS: &str = "io.github.mcp-idempotent/idempotency-key";

/// `_meta` of a result that was not made by this call: `{"at": "<RFC 3339>"}`.
pub const REPLAYED: &str = "io.github.mcp-idempotent/replayed";

/// `_meta` of a tool's entry in `tools/list`: its contract.
pub const CONTRACT: &str = "io.github.mcp-idempotent/idempotency";

/// `_meta` of a refusal that is given as a tool result: what [`error_data`] puts in `data`.
pub const REFUSAL: &str = "io.github.mcp-idempotent/refusal";

/// Marks an error in `data` that proves that nothing happened; removed before it is sent.
pub(crate) const NOT_EXECUTED: &str = "io.github.mcp-idempotent/not-executed";

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
    let code = if refusal.kind().is_callers() {
        ErrorCode::INVALID_PARAMS
    } else {
        ErrorCode::INTERNAL_ERROR
    };
    ErrorData::new(
        code,
        refusal.message().to_owned(),
        Some(Value::Object(refusal_data(refusal))),
    )
}

/// A refusal as a tool result with `isError`, for hosts that hide protocol errors from the model.
#[must_use]
pub fn error_result(refusal: &Refusal) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(refusal.message())]);
    result
        .meta
        .get_or_insert_with(MetaObject::default)
        .insert(REFUSAL.into(), Value::Object(refusal_data(refusal)));
    result
}

/// Marks a result as not made by this call.
pub(crate) fn mark_replayed(meta: &mut Option<MetaObject>, at: Timestamp) {
    meta.get_or_insert_with(MetaObject::default)
        .insert(REPLAYED.into(), json!({ "at": at.to_string() }));
}

/// What a replay says to a model, where that is asked for.
pub(crate) fn replay_notice(at: Timestamp) -> ContentBlock {
    ContentBlock::text(format!(
        "This call was already executed at {at}; this is its result. It was not executed again. \
         To run it again, send a new idempotency key."
    ))
}

/// What the attribute says of a tool. What it leaves to the server's policy is not listed: the
/// tool's definition is made without the server.
pub(crate) fn contract(options: &ToolOptions) -> Value {
    let mut contract = Map::new();
    let mode = match options.mode {
        Mode::Transaction => "transaction",
        Mode::Lease => "lease",
    };
    contract.insert("mode".into(), mode.into());
    if let Some(key) = options.key {
        let key = match key {
            KeyRequirement::Explicit => "optional",
            KeyRequirement::Required => "required",
            _ => "derived",
        };
        contract.insert("key".into(), key.into());
    }
    if let Some(pointer) = options.key_argument {
        contract.insert("keyArgument".into(), pointer.into());
    }
    for (name, duration) in [
        ("retentionMs", options.retention),
        ("windowMs", options.window),
    ] {
        if let Some(duration) = duration {
            contract.insert(name.into(), millis(duration));
        }
    }
    Value::Object(contract)
}

/// The key argument in a tool's input schema, in words for a model.
pub(crate) fn key_property() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 255,
        "description": "A unique key for this one intended operation, for example a UUID. Make a \
            new key for each new intent. To retry a call whose result you did not get, send the \
            same key with the same arguments: the operation is not carried out a second time.",
    })
}

fn millis(duration: Duration) -> Value {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .into()
}
