//! The guard: a lease under a second id of a call, which is completed together with the call's record.
//!
//! Two kinds of call need one, and no call needs both:
//!
//! | Whose second id is it? | Why | Where |
//! | --- | --- | --- |
//! | the one that the call has under the previous secret | processes that only know that secret serve beside this one | [`previous`] |
//! | one that equal calls under other keys share | the tool minds rotated keys | [`equal_calls`] |
//!
//! [`clear`] decides whether a call needs a guard, before its own record is claimed; [`clearance`] is what it
//! then holds. The guard itself is in [`of_call`], and [`ending`] says how it ends. What its lease must outlast
//! is in [`terms`]. The [`witness`] of a guard says that it guards a transaction.

mod clear;
mod clearance;
mod ending;
mod equal_calls;
mod leases;
mod of_call;
mod previous;
mod terms;
mod witness;

pub(super) use self::{
    clear::Uncleared,
    clearance::Clearance,
    ending::GuardEnd,
    of_call::{Guard, Under},
};
