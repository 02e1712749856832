//! Files of the engine, compiled once more, and their tests.

#![expect(
    unreachable_pub,
    dead_code,
    reason = "in the crate itself they have more users"
)]
#![allow(
    unfulfilled_lint_expectations,
    reason = "some lints ask only what a library publishes"
)]

#[path = "../../../src/engine/flight.rs"]
mod flight;
#[path = "../../../src/engine/handler.rs"]
mod handler;
#[path = "../../../src/engine/late_transaction.rs"]
mod late_transaction;
#[path = "../../../src/engine/lent.rs"]
mod lent;

mod beginning;
mod desk;
mod detaching;
mod joining;
mod lending;
mod site;
mod stopping;
