//! What it means to a call that its store failed.

use crate::{policy::OnDoubt, record::Record, store::StoreError, telemetry::Mode};

/// How a call's mode and policy treat obstacles.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) mode: Mode,
    pub(super) fail_open: bool,
    pub(super) on_doubt: OnDoubt,
}

/// A claim that failed, and what had been seen of the call by then.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: StoreError,
    /// A record in doubt: an attempt may have acted.
    pub(super) in_doubt: Option<Record>,
}

impl Failed {
    pub(super) const fn after(in_doubt: Option<Record>, error: StoreError) -> Self {
        Self { error, in_doubt }
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::after(None, error)
    }
}

/// What a store's failure means to a call.
pub(super) enum Failure {
    /// An attempt may have acted. That matters more than the unavailable store.
    InDoubt(Record),
    /// The call was seen running elsewhere, and its effect is unknown.
    InProgress,
    /// Nothing is known of the call, and the policy lets the handler run all the same.
    FailOpen,
    Unavailable,
}

/// Decides what a store's failure means. This is the only place where a call may come to run without
/// protection.
pub(super) fn failed_with(
    error: &StoreError,
    in_doubt: Option<Record>,
    is_running: bool,
    rules: Rules,
) -> Failure {
    if !error.is_transient() {
        return Failure::Unavailable;
    }
    let (failure, meaning) = match in_doubt {
        // In transaction mode a retry finds out.
        Some(record) if rules.mode == Mode::Lease => (
            Failure::InDoubt(record),
            "the idempotency store failed while a call in doubt was taken over",
        ),
        _ if is_running => (
            Failure::InProgress,
            "the idempotency store failed while a call waited for one that is running elsewhere",
        ),
        _ if rules.fail_open => (
            Failure::FailOpen,
            "the idempotency store failed; the handler runs without any protection",
        ),
        _ => return Failure::Unavailable,
    };
    tracing::warn!(error = error as &dyn std::error::Error, "{meaning}");
    failure
}
