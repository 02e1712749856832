//! The tests of core that use it from outside, in one binary.

mod canonical;
mod fingerprint;
mod golden;
