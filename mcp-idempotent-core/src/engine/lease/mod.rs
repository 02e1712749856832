//! Lease mode: the claim is durable before the handler runs, the lease is renewed while it does, and
//! the result is recorded only by the attempt that still has the lease.
//!
//! `begin` claims, or takes over what is in doubt; `owned` is the lease in the engine's hand, and
//! `handle` the same lease in the handler's; `heart` renews it; `end` records.

mod begin;
mod end;
mod handle;
mod heart;
mod held;
mod owned;
mod verify;

pub use self::{
    begin::Begun,
    end::LeaseAttempt,
    handle::LeaseHandle,
    held::NotCurrent,
    verify::{InDoubtCall, Verdict, Verify},
};
pub(super) use self::{
    heart::Heart,
    held::{Held, SeedOf, Terms},
};
