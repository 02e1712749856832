//! Whole calls: rmcp's client, rmcp's server, `#[idempotent]` tools, a real database.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod outcomes;
mod recorded;
mod server;
mod wire;
mod world;
