//! A seal: proof that a value was made in this process.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::LazyLock,
};

use serde_json::Value;

/// A seal for `value`. It is worthless for any other value.
pub(super) fn seal_of(purpose: &str, value: &Value) -> Value {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    format!("{:016x}", KEY.hash_one((purpose, value.to_string()))).into()
}
