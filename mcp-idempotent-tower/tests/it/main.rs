//! The integration tests of this crate, in one binary.

#![allow(clippy::unwrap_used, reason = "a test may")]

#[cfg(feature = "sqlite")]
mod after_commit;
mod attribute;
mod client;
mod deploys;
mod error_results;
mod layer;
mod nested;
mod panics;
#[cfg(feature = "relay")]
mod relay;
#[cfg(feature = "sqlite")]
mod scope;
#[cfg(all(feature = "testing", feature = "sqlite"))]
mod testing;
#[cfg(feature = "sqlite")]
mod unprotected;
mod upstream;
mod wire;
