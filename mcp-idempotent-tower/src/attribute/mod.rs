//! `#[idempotent]`: the code that its expansion calls.

pub(crate) mod options;
mod parts;
pub mod runtime;
mod stand_ins;
