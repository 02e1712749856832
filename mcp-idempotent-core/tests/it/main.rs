//! Core's tests: the rules as sentences.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod engine;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
