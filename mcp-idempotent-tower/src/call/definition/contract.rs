//! What a tool's definition and the server's capability tell a client.

use std::time::Duration;

use mcp_idempotent_core::{KeyRequirement, OnDoubt, OnError, Policy, PolicyOverride, Wait};
use rmcp::model::{JsonObject, Tool};
use serde_json::{Map, Value, json};

use crate::{
    attribute::options::{Mode, ToolOptions},
    call::refusal::millis,
    wire,
};

/// Members of a contract.
const MODE: &str = "mode";
const KEY_REQUIREMENT: &str = "key";
const KEY_ARGUMENT: &str = "keyArgument";
const ALSO_KNOWN_AS: &str = "alsoKnownAs";
const IGNORED: &str = "ignoredArguments";
const RETENTION: &str = "retentionMs";
const WINDOW: &str = "windowMs";
const ON_DOUBT: &str = "inDoubt";
const LEASE: &str = "leaseMs";
const HEARTBEAT: &str = "heartbeatMs";
const IN_DOUBT_RETENTION: &str = "inDoubtRetentionMs";

const TRANSACTION: &str = "transaction";
const LEASE_MODE: &str = "lease";

/// The contract of an annotated tool. What the attribute leaves to the server's policy is missing, as
/// the definition is made without the server; [`complete`] adds it.
pub(crate) fn contract(options: &ToolOptions) -> Value {
    let mut contract = Map::new();
    let mode = match options.mode {
        Mode::Transaction => TRANSACTION,
        Mode::Lease => LEASE_MODE,
    };
    contract.insert(MODE.into(), mode.into());
    let policy = &options.policy;
    if let Some(key) = policy.key {
        contract.insert(KEY_REQUIREMENT.into(), requirement(key).into());
    }
    if let Some(pointer) = &policy.key_argument {
        contract.insert(KEY_ARGUMENT.into(), pointer.as_ref().into());
    }
    if let Some(name) = &policy.also_known_as {
        contract.insert(ALSO_KNOWN_AS.into(), name.as_ref().into());
    }
    if let Some(ignored) = &policy.ignored {
        let ignored: Vec<&str> = ignored.iter().map(AsRef::as_ref).collect();
        contract.insert(IGNORED.into(), ignored.into());
    }
    for (name, duration) in [
        (RETENTION, policy.retention),
        (WINDOW, policy.window),
        (LEASE, policy.lease),
        (HEARTBEAT, policy.heartbeat),
        (IN_DOUBT_RETENTION, policy.in_doubt_retention),
    ] {
        if let Some(duration) = duration {
            contract.insert(name.into(), millis(duration));
        }
    }
    if let Some(on_doubt) = policy.on_doubt {
        contract.insert(ON_DOUBT.into(), in_doubt(on_doubt).into());
    }
    Value::Object(contract)
}

/// The contract of a tool behind the layer, which knows the whole policy.
pub(crate) fn contract_of(policy: &Policy, mode: &'static str) -> Value {
    let mut contract = json!({ MODE: mode });
    complete(&mut contract, policy);
    contract
}

/// The options of an annotated tool, as far as its contract states them; `None` where the definition
/// has no contract.
pub(crate) fn options_of(tool: &Tool) -> Option<ToolOptions> {
    let contract = tool.meta.as_ref()?.get(wire::CONTRACT)?;
    let is_transaction = contract.get(MODE).is_some_and(|mode| mode == TRANSACTION);
    let mut policy = policy_in(contract);
    let mode = if is_transaction {
        Mode::Transaction
    } else {
        // A contract does not state `on_error`, and in lease mode a policy must have one.
        policy.on_error = Some(OnError::InDoubt);
        Mode::Lease
    };
    Some(ToolOptions {
        mode,
        policy,
        ..ToolOptions::LEASE
    })
}

fn policy_in(contract: &Value) -> PolicyOverride {
    let text = |name| contract.get(name).and_then(Value::as_str);
    let duration = |name| {
        let millis = contract.get(name).and_then(Value::as_u64);
        millis.map(Duration::from_millis)
    };
    let ignored = contract.get(IGNORED).and_then(Value::as_array);
    PolicyOverride {
        key: match text(KEY_REQUIREMENT) {
            Some(OPTIONAL) => Some(KeyRequirement::Explicit),
            Some(REQUIRED) => Some(KeyRequirement::Required),
            Some(DERIVED) => Some(KeyRequirement::Derived),
            _ => None,
        },
        key_argument: text(KEY_ARGUMENT).map(|pointer| pointer.to_owned().into()),
        ignored: ignored.map(|pointers| {
            let pointers = pointers.iter().filter_map(Value::as_str);
            pointers.map(|pointer| pointer.to_owned().into()).collect()
        }),
        also_known_as: text(ALSO_KNOWN_AS).map(|name| name.to_owned().into()),
        on_doubt: match text(ON_DOUBT) {
            Some(FAIL) => Some(OnDoubt::Fail),
            Some(RERUN) => Some(OnDoubt::Rerun),
            Some(VERIFY) => Some(OnDoubt::Verify),
            _ => None,
        },
        retention: duration(RETENTION),
        window: duration(WINDOW),
        lease: duration(LEASE),
        heartbeat: duration(HEARTBEAT),
        in_doubt_retention: duration(IN_DOUBT_RETENTION),
        ..PolicyOverride::NONE
    }
}

/// Adds the members that a contract lacks, from the policy in force.
pub(crate) fn complete(contract: &mut Value, policy: &Policy) {
    let Value::Object(contract) = contract else {
        return;
    };
    let is_lease = contract.get(MODE).is_some_and(|mode| mode == LEASE_MODE);
    let mut say = |name: &str, value: Value| {
        contract.entry(name).or_insert(value);
    };
    say(KEY_REQUIREMENT, requirement(policy.key).into());
    if let Some(pointer) = policy.key_argument.as_deref() {
        say(KEY_ARGUMENT, pointer.into());
    }
    if let Some(name) = policy.also_known_as.as_deref() {
        say(ALSO_KNOWN_AS, name.into());
    }
    if !policy.ignored.is_empty() {
        let ignored: Vec<&str> = policy.ignored.iter().map(|pointer| &**pointer).collect();
        say(IGNORED, ignored.into());
    }
    say(RETENTION, millis(policy.retention));
    if is_lease && policy.on_doubt != OnDoubt::Fail {
        say(ON_DOUBT, in_doubt(policy.on_doubt).into());
    }
    if policy.key == KeyRequirement::Derived {
        say(WINDOW, millis(policy.window));
    }
}

const FAIL: &str = "fail";
const RERUN: &str = "rerun";
const VERIFY: &str = "verify";

fn in_doubt(on_doubt: OnDoubt) -> &'static str {
    match on_doubt {
        OnDoubt::Rerun => RERUN,
        OnDoubt::Verify => VERIFY,
        _ => FAIL,
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

/// The server's entry in `capabilities.extensions`.
pub(crate) fn capability(policy: &Policy) -> JsonObject {
    let mut capability = Map::new();
    capability.insert(RETENTION.into(), millis(policy.retention));
    let keys = [wire::KEY, wire::KEY_ALIAS].map(|name| format!("_meta[\"{name}\"]"));
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
    capability.insert("statusMethod".into(), wire::STATUS_METHOD.into());
    capability
}
