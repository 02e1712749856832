//! The tests of core that use it from outside, in one binary.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod canonical;
mod fingerprint;
mod golden;
