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

    /// Two tools are recorded under one name, so one would get the other's results.
    pub(crate) fn of_one_name(name: &str) -> Self {
        Self::new(format!(
            "two tools are recorded under the name `{name}`, and would get each other's results; \
             give `also_known_as` only a name that no tool has any more"
        ))
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
