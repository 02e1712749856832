//! Lease mode: the claim is durable before the handler runs, the lease is renewed while it runs,
//! and only the attempt that still has the lease may record the result.
//!
//! Two types stand for a lease: `Held` (`held`) in the engine, and [`LeaseHandle`] (`handle`) in the
//! handler. `begin` claims, or takes over a call in doubt. `heart` renews the lease, and `attempt` runs the handler and
//! records the result, or finds out what became of one that a transaction of another driver was to record (`elsewhere`).
//! `end_on_drop` ends a lease whose attempt got lost on the way.
//!
//! # When a lease lapses
//!
//! Nothing runs at that moment and nothing is written. From then on every store reads the record
//! as in doubt.
//!
//! - *The next call of the key* is given that record by [`Store::claim`](crate::Store::claim).
//!   `begin` does what [`Policy::on_doubt`](crate::Policy::on_doubt) says: refuse the call, take the
//!   record over and run again, or first ask the author's function (`verify`).
//! - *The attempt that lost the lease*, if it is still alive, learns it from `heart`, at the latest
//!   when the lease ends by this process's own clock. `held` passes it on to the handler. `attempt`
//!   records nothing: the store refuses an attempt whose lease has ended or was taken over.
//! - *An operator* may resolve the record (`operator`, in the engine).

mod attempt;
mod begin;
mod elsewhere;
mod end_on_drop;
mod handle;
mod heart;
mod held;
mod verify;

pub use self::{
    attempt::LeaseAttempt,
    begin::Begun,
    handle::LeaseHandle,
    held::NotCurrent,
    verify::{InDoubtCall, Verdict, Verify},
};
pub(super) use self::{
    heart::Heart,
    held::{Held, SeedOf, Terms},
};
