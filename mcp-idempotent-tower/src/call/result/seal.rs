//! A seal: proof that a value was made in the very run of the author's code that returns it.

use std::{
    future::Future,
    hash::{BuildHasher as _, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use serde_json::Value;

tokio::task_local! {
    /// The run of the author's code that this task is in.
    static RUN: u64;
}

fn next_run() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

/// A run of the author's code. A seal that is made in it is worthless outside.
pub(crate) fn run<F: Future>(code: F) -> impl Future<Output = F::Output> {
    RUN.scope(next_run(), code)
}

/// A seal for `value`, worthless for any other value and in any other run. `None` outside of all runs.
pub(in crate::call) fn seal_of(purpose: &str, value: &Value) -> Option<Value> {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let run = RUN.try_with(|run| *run).ok()?;
    Some(format!("{:016x}", KEY.hash_one((purpose, run, value.to_string()))).into())
}

#[cfg(test)]
pub(in crate::call) fn run_now<T>(code: impl FnOnce() -> T) -> T {
    RUN.sync_scope(next_run(), code)
}
