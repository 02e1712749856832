//! Every name that goes over the wire.

use std::time::Duration;

use mcp_idempotent_core::{
    Action, CommitOutcome, KeyRequirement, Policy, Refusal, Timestamp, Wait,
};
use rmcp::{
    ErrorData,
    model::{CallToolResult, ContentBlock, ErrorCode, JsonObject, MetaObject},
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

/// The extension in `capabilities.extensions` of a server with our layer.
pub const EXTENSION: &str = "io.github.mcp-idempotent/idempotency";

/// The request that asks what became of a call.
pub const STATUS_METHOD: &str = "io.github.mcp-idempotent/status";

/// Where SEP-3182 puts the key: `params.idempotencyKey`.
pub const KEY_MEMBER: &str = "idempotencyKey";

/// Where SEP-3182 says that a server knows it: `capabilities.tools.idempotency`.
pub const SEP_CAPABILITY: &str = "idempotency";

/// What another server said in these names, and a handler passed on: in `_meta` of a result. In an
/// error it is under `upstream` in `data`.
pub const UPSTREAM: &str = "io.github.mcp-idempotent/upstream";

/// What all names of ours in a `_meta` begin with, but for [`KEY`].
pub(crate) const PREFIX: &str = "io.github.mcp-idempotent/";

/// Tells, beside a name of ours, that it was put there by this process; removed before it is sent.
pub(crate) const SEAL: &str = "io.github.mcp-idempotent/made-here";

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

/// Members of a contract.
const KEY_REQUIREMENT: &str = "key";
const KEY_ARGUMENT: &str = "keyArgument";
const IGNORED: &str = "ignoredArguments";
const RETENTION: &str = "retentionMs";
const WINDOW: &str = "windowMs";

/// What the attribute says of a tool. What it leaves to the server's policy is not listed: the
/// tool's definition is made without the server. [`complete`] adds it.
pub(crate) fn contract(options: &ToolOptions) -> Value {
    let mut contract = Map::new();
    let mode = match options.mode {
        Mode::Transaction => "transaction",
        Mode::Lease => "lease",
    };
    contract.insert("mode".into(), mode.into());
    if let Some(key) = options.key {
        contract.insert(KEY_REQUIREMENT.into(), requirement(key).into());
    }
    if let Some(pointer) = options.key_argument {
        contract.insert(KEY_ARGUMENT.into(), pointer.into());
    }
    if !options.ignored.is_empty() {
        contract.insert(IGNORED.into(), options.ignored.into());
    }
    for (name, duration) in [(RETENTION, options.retention), (WINDOW, options.window)] {
        if let Some(duration) = duration {
            contract.insert(name.into(), millis(duration));
        }
    }
    Value::Object(contract)
}

/// What the layer says of a tool: all of it is known.
pub(crate) fn contract_of(policy: &Policy, mode: &'static str) -> Value {
    let mut contract = json!({ "mode": mode });
    complete(&mut contract, policy);
    contract
}

/// The policy of which a contract says a part, and the server's policy the rest.
pub(crate) fn over(contract: &Value, base: &Policy) -> Policy {
    let mut policy = base.clone();
    match contract.get(KEY_REQUIREMENT).and_then(Value::as_str) {
        Some(OPTIONAL) => policy.key = KeyRequirement::Explicit,
        Some(REQUIRED) => policy.key = KeyRequirement::Required,
        Some(DERIVED) => policy.key = KeyRequirement::Derived,
        _ => {}
    }
    if let Some(pointer) = contract.get(KEY_ARGUMENT).and_then(Value::as_str) {
        policy.key_argument = Some(pointer.into());
    }
    if let Some(ignored) = contract.get(IGNORED).and_then(Value::as_array) {
        policy.ignored = ignored
            .iter()
            .filter_map(|pointer| pointer.as_str().map(Into::into))
            .collect();
    }
    let duration = |name| {
        let millis = contract.get(name).and_then(Value::as_u64);
        millis.map(Duration::from_millis)
    };
    policy.retention = duration(RETENTION).unwrap_or(policy.retention);
    policy.window = duration(WINDOW).unwrap_or(policy.window);
    policy
}

/// Adds to a contract what it does not say of the policy that is in force.
pub(crate) fn complete(contract: &mut Value, policy: &Policy) {
    let Value::Object(contract) = contract else {
        return;
    };
    let mut say = |name: &str, value: Value| {
        contract.entry(name).or_insert(value);
    };
    say(KEY_REQUIREMENT, requirement(policy.key).into());
    if let Some(pointer) = policy.key_argument.as_deref() {
        say(KEY_ARGUMENT, pointer.into());
    }
    if !policy.ignored.is_empty() {
        let ignored: Vec<&str> = policy.ignored.iter().map(|pointer| &**pointer).collect();
        say(IGNORED, ignored.into());
    }
    say(RETENTION, millis(policy.retention));
    if policy.key == KeyRequirement::Derived {
        say(WINDOW, millis(policy.window));
    }
}

const OPTIONAL: &str = "optional";
const REQUIRED: &str = "required";
const DERIVED: &str = "derived";

fn requirement(key: KeyRequirement) -> &'static str {
    match key {
        KeyRequirement::Explicit => OPTIONAL,
        KeyRequirement::Required => REQUIRED,
        _ => DERIVED,
    }
}

/// What the server says in `capabilities.extensions`.
pub(crate) fn capability(policy: &Policy) -> JsonObject {
    let mut capability = Map::new();
    capability.insert(RETENTION.into(), millis(policy.retention));
    let keys = [KEY, KEY_ALIAS].map(|name| format!("_meta[\"{name}\"]"));
    capability.insert("keys".into(), keys.to_vec().into());
    match policy.wait {
        Wait::UpTo(bound) => {
            capability.insert("inProgress".into(), "wait".into());
            capability.insert("waitMs".into(), millis(bound));
        }
        _ => {
            capability.insert("inProgress".into(), "reject".into());
        }
    }
    capability.insert("statusMethod".into(), STATUS_METHOD.into());
    capability
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

const TIMED_OUT: &str = "call_timed_out";
const FAILED: &str = "call_failed";
const OVERLOADED: &str = "server_overloaded";
const NOT_CALLED: &str = "call_not_executed";

/// Whether the `type` of an error's data is one that only we may say.
pub(crate) fn is_a_type_of_ours(kind: &str) -> bool {
    kind.starts_with("idempotency_") || [TIMED_OUT, FAILED, OVERLOADED, NOT_CALLED].contains(&kind)
}

/// Whether it says that the handler may have been cut off. To be asked of errors of ours only, such
/// as one from a server below that was wrapped by itself.
pub(crate) fn is_of_unknown_outcome(error: &ErrorData) -> bool {
    let kind = error.data.as_ref().and_then(|data| data.get("type"));
    kind.is_some_and(|kind| kind == TIMED_OUT || kind == FAILED)
}

/// A timeout above or below us.
pub(crate) fn timed_out() -> ErrorData {
    of_a_layer(
        TIMED_OUT,
        CommitOutcome::Unknown,
        "The call took longer than the server waits, so it is not known whether it took effect. If \
         it was sent with an idempotency key, send the same call with the same key to get its \
         result; without one, look before repeating it.",
    )
}

/// A load limit refused the call.
pub(crate) fn overloaded() -> ErrorData {
    of_a_layer(
        OVERLOADED,
        CommitOutcome::NotCommitted,
        "The server is too busy, so the call was not executed. Wait, then send it again with the \
         same key.",
    )
}

/// A service below the client and above the handler could not take the call.
pub(crate) fn not_called() -> ErrorData {
    of_a_layer(
        NOT_CALLED,
        CommitOutcome::NotCommitted,
        "The server could not take the call, so it was not executed. Send it again with the same \
         key.",
    )
}

/// A service gave the call up.
pub(crate) fn failed() -> ErrorData {
    of_a_layer(
        FAILED,
        CommitOutcome::Unknown,
        "The call failed in the server, and it is not known whether it took effect. If it was sent \
         with an idempotency key, send the same call with the same key to find out; without one, \
         look before repeating it.",
    )
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
