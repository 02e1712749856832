//! Core's tests: the rules as sentences.

mod engine;
mod memory;
