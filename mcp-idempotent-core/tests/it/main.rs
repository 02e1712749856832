//! The integration tests of core, as one binary.

#[cfg(feature = "sqlite")]
mod sqlite;
