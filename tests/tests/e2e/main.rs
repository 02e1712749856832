//! Whole calls: rmcp's client, rmcp's server, `#[idempotent]` tools, a real database.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod abandoned;
mod attribute;
mod crashes;
mod environment;
mod lost_commits;
mod misbehaviour;
mod nesting;
mod outcomes;
mod processes;
mod recorded;
mod results;
mod retention;
mod server;
mod wire;
mod world;
