//! The integration tests of this crate, in one binary.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod attribute;
mod client;
mod layer;
mod upstream;
mod wire;
