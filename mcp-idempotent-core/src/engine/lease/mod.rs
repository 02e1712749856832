//! Lease mode: the claim is durable before the handler runs, the lease is renewed while it runs,
//! and only the attempt that still has the lease may record the result.
//!
//! Two types stand for a lease: `Held` (`held`) in the engine, and [`LeaseHandle`] (`handle`) in the
//! handler. `begin` claims, or takes over a call in doubt. `heart` renews the lease, and `attempt` runs the handler and
//! records the result, or finds out what became of one that a transaction of another driver was to record (`elsewhere`).
//! `end_on_drop` ends a lease whose attempt got lost on the way. `lapse` says what happens when a lease lapses.

mod attempt;
mod begin;
mod elsewhere;
mod end_on_drop;
mod handle;
mod heart;
mod held;
mod lapse;
mod verify;

pub use self::{
    attempt::LeaseAttempt,
    begin::Begun,
    handle::LeaseHandle,
    lapse::NotCurrent,
    verify::{InDoubtCall, Verdict, Verify},
};
pub(super) use self::{
    heart::Heart,
    held::{Held, SeedOf, Terms},
};
