//! The integration tests of this crate, in one binary.

mod attribute;
mod client;
mod layer;
