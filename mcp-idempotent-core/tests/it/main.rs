//! The integration tests of core, as one binary.

#![allow(
    clippy::unwrap_used,
    reason = "a test may unwrap, and so may what tests share"
)]

#[cfg(feature = "sqlite")]
mod sqlite;
