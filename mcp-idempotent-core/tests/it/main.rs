//! The tests of core that use it from outside, in one binary: the rules as sentences.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod canonical;
mod engine;
mod fingerprint;
mod golden;
#[cfg(feature = "testing")]
mod memory;
mod policy;
#[cfg(feature = "postgres")]
mod postgres;
// With the other servers of the tests' kit.
#[cfg(all(feature = "redis", feature = "postgres"))]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod stores;
mod telemetry;
