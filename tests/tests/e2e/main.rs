//! Whole calls: rmcp's client, rmcp's server, `#[idempotent]` tools, a real database.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod abandoned;
mod attribute;
mod check;
mod crashes;
mod docs;
mod environment;
mod house;
mod identity;
mod layer;
mod lost_commits;
mod migrating;
mod misbehaviour;
mod model;
mod nesting;
mod operator;
mod outcomes;
mod outside;
mod processes;
mod proxy;
mod readme;
mod recorded;
mod refusals;
mod results;
mod retention;
mod rotated_keys;
mod rotation;
mod server;
mod session_end;
mod sessions;
mod shutdown;
mod tree;
mod unprotected;
mod wire;
mod world;
