//! The schema's name.

use crate::store::{StoreError, StoreErrorKind};

/// A schema's name, checked to be a plain identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SchemaName(String);

impl SchemaName {
    pub(super) const DEFAULT: &'static str = "mcp_idempotent";

    pub(super) fn new(name: &str) -> Result<Self, StoreError> {
        let starts_well = name
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let plain = name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if starts_well && plain && name.len() <= 63 && !name.starts_with("pg_") {
            return Ok(Self(name.to_owned()));
        }
        Err(StoreError::new(
            StoreErrorKind::Misconfigured,
            format!(
                "{name:?} is not a valid schema name: use 1 to 63 of a-z, 0-9 and _, starting with a letter or _, and not with pg_"
            ),
        ))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl Default for SchemaName {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}
