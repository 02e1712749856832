//! What follows from a handler's result, and from a failure of the store.
//!
//! What is recorded is one function for each mode. They are tables: mode, policy and kind of result
//! decide, and nothing else.

use bytes::Bytes;

use crate::{
    fingerprint::KeyKind,
    handler_result::ResultKind,
    policy::{OnDoubt, OnError, OnErrorResult, OnExpired, Policy},
    record::Record,
    store::{Completion, StoreError},
    telemetry::Mode,
};

/// What to do with a transaction-mode attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransactionPlan {
    Commit,
    RollBackAndRecord,
    RollBack,
}

/// What to do with a lease-mode attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeasePlan {
    Record,
    Release,
    InDoubt,
}

pub(super) fn transaction(kind: ResultKind, on_error: OnError, key: KeyKind) -> TransactionPlan {
    use TransactionPlan::{Commit, RollBack, RollBackAndRecord};
    match kind {
        ResultKind::Success | ResultKind::Task => Commit,
        ResultKind::ErrorResult => match on_error {
            OnError::Commit => Commit,
            OnError::Record => RollBackAndRecord,
            OnError::Release => RollBack,
            // A client cannot choose another key if the key is derived. If the error were recorded,
            // a passing failure would stick for the whole window.
            OnError::Default | OnError::InDoubt => match key {
                KeyKind::Explicit => RollBackAndRecord,
                KeyKind::Derived => RollBack,
            },
        },
        ResultKind::ProtocolError => match on_error {
            OnError::Record => RollBackAndRecord,
            OnError::Default | OnError::Release | OnError::Commit | OnError::InDoubt => RollBack,
        },
        ResultKind::NotExecuted
        | ResultKind::NotCalled
        | ResultKind::InputRequired
        | ResultKind::Interrupted => RollBack,
    }
}

/// Whether a transaction-mode result of this kind commits what its handler wrote. The key has no part in
/// that.
#[must_use]
pub fn commits(policy: &Policy, kind: ResultKind) -> bool {
    transaction(kind, policy.on_error, KeyKind::Explicit) == TransactionPlan::Commit
}

/// `classified` is what the author's classifier says about an error result.
pub(super) fn lease(
    kind: ResultKind,
    policy: &Policy,
    classified: Option<OnErrorResult>,
    key: KeyKind,
) -> LeasePlan {
    use LeasePlan::{InDoubt, Record, Release};
    let by_author = match policy.on_error {
        OnError::Release => Release,
        OnError::Record => Record,
        OnError::Default | OnError::Commit | OnError::InDoubt => InDoubt,
    };
    match kind {
        ResultKind::Success | ResultKind::Task => Record,
        ResultKind::ErrorResult => match classified.or(policy.on_error_result) {
            Some(OnErrorResult::Record) => Record,
            Some(OnErrorResult::Release) => Release,
            Some(OnErrorResult::InDoubt) => InDoubt,
            // A declined card is an answer, unless an error means that nothing happened.
            None if key == KeyKind::Explicit && by_author == InDoubt => Record,
            None => by_author,
        },
        ResultKind::ProtocolError => by_author,
        ResultKind::NotExecuted | ResultKind::NotCalled | ResultKind::InputRequired => Release,
        ResultKind::Interrupted => InDoubt,
    }
}

/// The result, and how long it is kept, without a guard.
pub(super) fn completion(policy: &Policy, key: KeyKind, response: &Bytes) -> Completion {
    let mut completion = Completion::new(kept(policy, response), retention(policy, key));
    if policy.on_expired == OnExpired::Refuse {
        completion.tombstone = policy.tombstone;
    }
    completion
}

/// The result, unless it is too large to keep.
pub(super) fn kept(policy: &Policy, response: &Bytes) -> Option<Bytes> {
    is_kept(policy, response).then(|| response.clone())
}

/// Whether a result is small enough to keep.
pub(super) fn is_kept(policy: &Policy, response: &Bytes) -> bool {
    response.len() <= policy.max_result_bytes
}

/// How long a result is kept.
pub(super) fn retention(policy: &Policy, key: KeyKind) -> std::time::Duration {
    match key {
        KeyKind::Explicit => policy.retention,
        KeyKind::Derived => policy.window,
    }
}

/// How a call's mode and policy treat obstacles.
#[derive(Clone, Copy)]
pub(super) struct ModeRules {
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

/// Decides what a store's failure means to a call that leads. If the store fails earlier, when it is
/// asked for the secret, `join_or_claim` decides by the same rule.
pub(super) fn failed_with(
    error: &StoreError,
    in_doubt: Option<Record>,
    is_running: bool,
    rules: ModeRules,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_mode_records_as_the_table_says() {
        use ResultKind as K;
        use TransactionPlan::{Commit, RollBack, RollBackAndRecord};
        let explicit = KeyKind::Explicit;
        let derived = KeyKind::Derived;
        for (kind, on_error, key, expected) in [
            (K::Success, OnError::Default, explicit, Commit),
            (K::Success, OnError::Release, derived, Commit),
            (K::Task, OnError::Default, explicit, Commit),
            (
                K::ErrorResult,
                OnError::Default,
                explicit,
                RollBackAndRecord,
            ),
            (K::ErrorResult, OnError::Default, derived, RollBack),
            (K::ErrorResult, OnError::Record, derived, RollBackAndRecord),
            (K::ErrorResult, OnError::Release, explicit, RollBack),
            (K::ErrorResult, OnError::Commit, derived, Commit),
            (K::ProtocolError, OnError::Default, explicit, RollBack),
            (K::ProtocolError, OnError::Commit, explicit, RollBack),
            (
                K::ProtocolError,
                OnError::Record,
                derived,
                RollBackAndRecord,
            ),
            (K::NotExecuted, OnError::Record, explicit, RollBack),
            (K::NotCalled, OnError::Record, explicit, RollBack),
            (K::InputRequired, OnError::Commit, explicit, RollBack),
            (K::Interrupted, OnError::Record, explicit, RollBack),
        ] {
            assert_eq!(
                transaction(kind, on_error, key),
                expected,
                "{kind:?} {on_error:?} {key:?}"
            );
        }
    }

    #[test]
    fn lease_mode_records_as_the_table_says() {
        use LeasePlan::{InDoubt, Record, Release};
        use ResultKind as K;
        for (kind, on_error, key, expected) in [
            (K::Success, OnError::InDoubt, KeyKind::Derived, Record),
            (K::Task, OnError::Release, KeyKind::Explicit, Record),
            (K::ErrorResult, OnError::InDoubt, KeyKind::Explicit, Record),
            (K::ErrorResult, OnError::Release, KeyKind::Explicit, Release),
            (K::ErrorResult, OnError::Release, KeyKind::Derived, Release),
            (K::ErrorResult, OnError::InDoubt, KeyKind::Derived, InDoubt),
            (
                K::ProtocolError,
                OnError::InDoubt,
                KeyKind::Explicit,
                InDoubt,
            ),
            (
                K::ProtocolError,
                OnError::Release,
                KeyKind::Explicit,
                Release,
            ),
            (K::NotExecuted, OnError::InDoubt, KeyKind::Explicit, Release),
            (K::NotCalled, OnError::InDoubt, KeyKind::Explicit, Release),
            (
                K::InputRequired,
                OnError::InDoubt,
                KeyKind::Explicit,
                Release,
            ),
            (K::Interrupted, OnError::Release, KeyKind::Explicit, InDoubt),
        ] {
            let policy = Policy {
                on_error,
                ..Policy::default()
            };
            assert_eq!(
                lease(kind, &policy, None, key),
                expected,
                "{kind:?} {on_error:?} {key:?}"
            );
        }
    }

    #[test]
    fn what_is_said_of_error_results_goes_before_what_is_said_of_errors() {
        use LeasePlan::{InDoubt, Record, Release};
        use ResultKind as K;
        let all = [
            (OnErrorResult::Record, Record),
            (OnErrorResult::Release, Release),
            (OnErrorResult::InDoubt, InDoubt),
        ];
        for (said, expected) in all {
            for on_error in [OnError::InDoubt, OnError::Release] {
                for key in [KeyKind::Explicit, KeyKind::Derived] {
                    let policy = |on_error_result| Policy {
                        on_error,
                        on_error_result,
                        ..Policy::default()
                    };
                    assert_eq!(
                        lease(K::ErrorResult, &policy(Some(said)), None, key),
                        expected
                    );
                    for (other, _) in all {
                        let policy = policy(Some(other));
                        assert_eq!(lease(K::ErrorResult, &policy, Some(said), key), expected);
                    }
                    let of_error = lease(K::ProtocolError, &policy(None), None, key);
                    let plan = lease(K::ProtocolError, &policy(Some(said)), None, key);
                    assert_eq!(plan, of_error);
                }
            }
        }
    }
}
