//! What the attribute says about one tool.

use std::{sync::Arc, time::Duration};

use mcp_idempotent_core::{KeyRequirement, OnDoubt, OnError, Policy, Wait};
use rmcp::model::JsonObject;
use serde_json::Value;

use crate::wire;

/// How a tool's effect and its record go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
#[expect(clippy::exhaustive_enums, reason = "the macro names it")]
pub enum Mode {
    /// They commit together.
    Transaction,
    /// The effect is outside the store.
    Lease,
}

/// What `#[idempotent(…)]` was given; `None` leaves the server's own policy in force.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
#[expect(clippy::exhaustive_structs, reason = "the macro builds it in a const")]
pub struct ToolOptions {
    pub mode: Mode,
    pub key: Option<KeyRequirement>,
    /// A JSON pointer.
    pub key_argument: Option<&'static str>,
    /// The name of the key argument where it is top-level.
    pub key_property: Option<&'static str>,
    /// The author's own input schema, from which it is seen whether the argument is theirs.
    pub input_schema: Option<fn() -> Arc<JsonObject>>,
    /// JSON pointers.
    pub ignored: &'static [&'static str],
    pub retention: Option<Duration>,
    pub window: Option<Duration>,
    pub wait: Option<Wait>,
    pub lease: Option<Duration>,
    pub heartbeat: Option<Duration>,
    pub on_error: Option<OnError>,
    pub on_doubt: Option<OnDoubt>,
    pub in_doubt_retention: Option<Duration>,
}

impl ToolOptions {
    /// Without options, on a tool that takes the transaction.
    pub const TRANSACTION: Self = Self {
        mode: Mode::Transaction,
        key: None,
        key_argument: None,
        key_property: None,
        input_schema: None,
        ignored: &[],
        retention: None,
        window: None,
        wait: None,
        lease: None,
        heartbeat: None,
        on_error: None,
        on_doubt: None,
        in_doubt_retention: None,
    };

    /// Without options, on a tool whose effect is outside the store.
    pub const LEASE: Self = Self {
        mode: Mode::Lease,
        ..Self::TRANSACTION
    };

    /// The server's policy with what the attribute says laid over it.
    pub(crate) fn over(&self, base: &Policy) -> Policy {
        let mut policy = base.clone();
        if let Some(key) = self.key {
            policy.key = key;
        }
        if let Some(pointer) = self.key_argument {
            policy.key_argument = Some(pointer.into());
        }
        if !self.ignored.is_empty() {
            policy.ignored = self.ignored.iter().map(|&pointer| pointer.into()).collect();
        }
        if let Some(retention) = self.retention {
            policy.retention = retention;
        }
        if let Some(window) = self.window {
            policy.window = window;
        }
        if let Some(wait) = self.wait {
            policy.wait = wait;
        }
        if let Some(lease) = self.lease {
            policy.lease = lease;
        }
        if self.heartbeat.is_some() {
            policy.heartbeat = self.heartbeat;
        }
        if let Some(on_doubt) = self.on_doubt {
            policy.on_doubt = on_doubt;
        }
        if let Some(retention) = self.in_doubt_retention {
            policy.in_doubt_retention = retention;
        }
        if let Some(on_error) = self.on_error {
            policy.on_error = on_error;
        }
        policy
    }

    /// The name of the key argument where it is top-level and not one of the author's own: it was
    /// added to the schema, and is removed before the arguments are parsed.
    pub(crate) fn added_argument(&self) -> Option<&'static str> {
        let name = self.key_property?;
        let schema = self.input_schema?();
        (!has_property(&schema, name)).then_some(name)
    }
}

/// Whether an object schema names a property.
pub(crate) fn has_property(schema: &JsonObject, name: &str) -> bool {
    schema
        .get("properties")
        .and_then(|properties| properties.get(name))
        .is_some()
}

/// The schema with a string property for the key, where it does not have one of that name.
pub(crate) fn with_key_property(
    mut schema: Arc<JsonObject>,
    name: &str,
    required: bool,
) -> Arc<JsonObject> {
    if has_property(&schema, name) {
        return schema;
    }
    let object = Arc::make_mut(&mut schema);
    let properties = object
        .entry("properties")
        .or_insert_with(|| Value::Object(JsonObject::new()));
    if let Value::Object(properties) = properties {
        properties.insert(name.to_owned(), wire::key_property());
    }
    if required {
        require_key_property(&mut schema, name);
    }
    schema
}

/// Makes the property that [`with_key_property`] added a required one; none of the author's.
pub(crate) fn require_key_property(schema: &mut Arc<JsonObject>, name: &str) {
    let property = schema.get("properties").and_then(|all| all.get(name));
    if property != Some(&wire::key_property()) {
        return;
    }
    let names = Arc::make_mut(schema)
        .entry("required")
        .or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(names) = names
        && !names.iter().any(|required| required == name)
    {
        names.push(name.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_attribute_says_goes_over_the_servers_policy() {
        let options = ToolOptions {
            key: Some(KeyRequirement::Required),
            key_argument: Some("/key"),
            ignored: &["/trace"],
            retention: Some(Duration::from_secs(1)),
            window: Some(Duration::from_secs(2)),
            lease: Some(Duration::from_secs(3)),
            wait: Some(Wait::Reject),
            on_error: Some(OnError::Release),
            ..ToolOptions::LEASE
        };
        let mut expected = Policy::default();
        expected.max_result_bytes = 17;
        let base = expected.clone();
        expected.key = KeyRequirement::Required;
        expected.key_argument = Some("/key".into());
        expected.ignored = Arc::new(["/trace".into()]);
        expected.retention = Duration::from_secs(1);
        expected.window = Duration::from_secs(2);
        expected.lease = Duration::from_secs(3);
        expected.wait = Wait::Reject;
        expected.on_error = OnError::Release;
        assert_eq!(options.over(&base), expected);
    }

    #[test]
    fn what_the_attribute_leaves_out_is_the_servers_policy() {
        let mut base = Policy::default();
        base.key = KeyRequirement::Explicit;
        base.key_argument = Some("/key".into());
        base.ignored = Arc::new(["/trace".into()]);
        base.on_error = OnError::Record;
        assert_eq!(ToolOptions::TRANSACTION.over(&base), base);
    }
}
