//! What the attribute says about one tool.

use std::{sync::Arc, time::Duration};

use mcp_idempotent_core::{KeyRequirement, OnError, Policy, Wait};
use rmcp::model::JsonObject;

/// What `#[idempotent(…)]` was given; `None` leaves the server's own policy in force.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
#[expect(clippy::exhaustive_structs, reason = "the macro builds it in a const")]
pub struct ToolOptions {
    pub key: Option<KeyRequirement>,
    /// A JSON pointer.
    pub key_argument: Option<&'static str>,
    /// The author's own input schema, from which it is seen whether the argument is theirs.
    pub input_schema: Option<fn() -> Arc<JsonObject>>,
    /// JSON pointers.
    pub ignored: &'static [&'static str],
    pub retention: Option<Duration>,
    pub window: Option<Duration>,
    pub wait: Option<Wait>,
    pub lease: Option<Duration>,
    pub on_error: Option<OnError>,
}

impl ToolOptions {
    /// `#[idempotent]` without options.
    pub const DEFAULT: Self = Self {
        key: None,
        key_argument: None,
        input_schema: None,
        ignored: &[],
        retention: None,
        window: None,
        wait: None,
        lease: None,
        on_error: None,
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
        if let Some(on_error) = self.on_error {
            policy.on_error = on_error;
        }
        policy
    }

    /// The name of the key argument where it is top-level and not one of the author's own: it was
    /// added to the schema, and is removed before the arguments are parsed.
    pub(crate) fn added_argument(&self) -> Option<&'static str> {
        let name = self.key_argument?.strip_prefix('/')?;
        let schema = self.input_schema?();
        if name.contains('/') || crate::__private::has_property(&schema, name) {
            return None;
        }
        Some(name)
    }
}
