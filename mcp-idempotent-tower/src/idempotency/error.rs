//! Why a server cannot be built as it is set up.

use std::fmt;

use mcp_idempotent_core::InvalidPolicy;

/// The settings contradict each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildError {
    message: String,
}

impl BuildError {
    pub(crate) const fn new(message: String) -> Self {
        Self { message }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BuildError {}

impl From<InvalidPolicy> for BuildError {
    fn from(error: InvalidPolicy) -> Self {
        Self::new(error.to_string())
    }
}
