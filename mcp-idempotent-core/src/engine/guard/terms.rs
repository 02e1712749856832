//! What a guard has to know about its call, and for how long it holds.

use std::time::Duration;

use crate::{
    engine::{lease::Terms, plan, replacement::kept_for},
    fingerprint::Identity,
    policy::{OnDoubt, Policy},
};

/// What a guard stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GuardOf {
    /// The record that the call has under the previous secret.
    PreviousSecret,
    /// The record that it shares with equal calls under other keys.
    EqualCalls,
}

/// What a guard has to know about its call.
#[derive(Clone, Copy)]
pub(super) struct GuardTerms {
    pub(super) of: GuardOf,
    pub(super) timing: Terms,
    pub(super) on_doubt: OnDoubt,
    /// The handler writes through the transaction that makes the record.
    pub(super) transaction: bool,
    pub(super) retention: Duration,
    pub(super) tombstone: Duration,
}

impl GuardTerms {
    pub(super) fn of_previous(
        policy: &Policy,
        identity: &Identity,
        on_doubt: OnDoubt,
        transaction: bool,
        limit: Option<Duration>,
    ) -> Self {
        // The guard must outlast the lease that it guards.
        let lease = policy.lease.saturating_mul(2);
        let retention = plan::retention(policy, identity.kind);
        Self {
            of: GuardOf::PreviousSecret,
            timing: timing(policy, lease, transaction, limit),
            on_doubt,
            transaction,
            retention,
            tombstone: kept_for(policy, identity) - retention,
        }
    }

    pub(super) fn of_equal_calls(
        policy: &Policy,
        transaction: bool,
        limit: Option<Duration>,
    ) -> Self {
        let lease = if transaction {
            policy.lease
        } else {
            policy.lease.saturating_mul(2)
        };
        Self {
            of: GuardOf::EqualCalls,
            timing: timing(policy, lease, transaction, limit),
            on_doubt: OnDoubt::Fail,
            transaction,
            retention: policy.rotated_keys_window,
            tombstone: Duration::ZERO,
        }
    }

    /// Whether it has a witness, which tells it from the lease of an attempt that acted.
    pub(super) fn has_witness(&self) -> bool {
        self.transaction && self.of == GuardOf::PreviousSecret
    }
}

fn timing(policy: &Policy, lease: Duration, transaction: bool, limit: Option<Duration>) -> Terms {
    // It must outlast any transaction that blocks its renewal.
    let lease = lease.max(limit.unwrap_or_default().saturating_mul(4));
    let heartbeat = if transaction {
        // The transaction completes the guard. Above READ COMMITTED it cannot do that after a
        // renewal that came later than its first statement, so renewals are rare.
        lease / 4 * 3
    } else {
        policy.heartbeat_period()
    };
    Terms { lease, heartbeat }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn a_guard_outlasts_what_it_guards_and_is_renewed_in_time() {
        let policy = Policy::default();
        for limit in [None, Some(LIMIT)] {
            for transaction in [false, true] {
                let Terms { lease, heartbeat } =
                    GuardTerms::of_equal_calls(&policy, transaction, limit).timing;
                // A transaction has no lease of its own, and one that blocks renewals ends in time.
                let guarded = if transaction {
                    limit.unwrap_or_default() * 3
                } else {
                    policy.lease
                };
                assert!(lease > guarded, "{lease:?} {guarded:?}");
                assert!(heartbeat < lease, "{heartbeat:?} {lease:?}");
                // A renewal after its first statement aborts a transaction above READ COMMITTED.
                assert!(!transaction || heartbeat > lease / 2, "{heartbeat:?}");
            }
        }
        let short = Policy {
            lease: LIMIT,
            ..policy
        };
        let terms = GuardTerms::of_equal_calls(&short, true, Some(LIMIT)).timing;
        assert!(terms.lease > LIMIT * 3, "{terms:?}");
    }

    #[test]
    fn equal_calls_are_minded_for_their_window() {
        let policy = Policy::default();
        for transaction in [false, true] {
            let terms = GuardTerms::of_equal_calls(&policy, transaction, None);
            assert_eq!(terms.retention, policy.rotated_keys_window);
            assert_ne!(terms.retention, policy.retention);
            assert!(!terms.has_witness());
        }
    }
}
