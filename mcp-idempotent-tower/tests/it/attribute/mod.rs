//! `#[idempotent]`, through a real rmcp client and server.

mod generic;
mod keys;
mod ui;
