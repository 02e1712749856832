//! Lease mode: the claim is durable before the handler runs, the lease is renewed while it runs,
//! and only the attempt that still has the lease may record the result.
//!
//! `begin` claims, or takes over a call in doubt. `owned` is the engine's side of the lease, and
//! `handle` is the handler's. `heart` renews it, and `end` records the result.

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
    held::{AnyHeld, Held, SeedOf, Terms},
};
