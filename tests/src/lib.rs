//! What the tests of several processes share with the server that they start.
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::unwrap_used,
    reason = "support of tests: a panic is a failed test, and its text the report"
)]

pub mod client;
pub mod conformance;
pub mod database;
pub mod kit;
pub mod ledger;
pub mod mutation;
pub mod outside;
pub mod planted;
