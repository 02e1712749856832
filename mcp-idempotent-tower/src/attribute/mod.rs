//! The attribute's door: from the wrapper that `#[idempotent]` writes onto the way of a call.

pub(crate) mod options;
mod parts;
pub mod runtime;
