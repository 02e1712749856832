//! The integration tests of this crate, in one binary.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod attribute;
mod client;
mod layer;
#[cfg(feature = "sqlite")]
mod scope;
mod upstream;
mod wire;
