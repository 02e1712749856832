//! What a guard has to know about its call.

use std::time::Duration;

use super::previous::kept;
use crate::{
    engine::{lease::Terms, plan},
    fingerprint::Identity,
    policy::{OnDoubt, Policy},
};

/// What a guard stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum GuardOf {
    /// The record that the call has under the previous secret.
    PreviousSecret,
    /// The record that it shares with equal calls under other keys.
    EqualCalls,
}

/// What a guard has to know about its call.
#[derive(Clone, Copy)]
pub(in crate::engine) struct GuardRules {
    pub(in crate::engine) of: GuardOf,
    pub(in crate::engine) terms: Terms,
    pub(super) on_doubt: OnDoubt,
    /// The handler writes through the transaction that makes the record.
    pub(in crate::engine) transaction: bool,
    pub(in crate::engine) retention: Duration,
    pub(super) tombstone: Duration,
}

impl GuardRules {
    pub(super) fn new(
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
            terms: terms(policy, lease, transaction, limit),
            on_doubt,
            transaction,
            retention,
            tombstone: kept(policy, identity) - retention,
        }
    }

    pub(in crate::engine) fn of_equal_calls(
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
            terms: terms(policy, lease, transaction, limit),
            on_doubt: OnDoubt::Fail,
            transaction,
            retention: policy.rotated_keys_window,
            tombstone: Duration::ZERO,
        }
    }

    /// Whether it has a mark, which tells it from the lease of an attempt that acted.
    pub(super) fn has_mark(&self) -> bool {
        self.transaction && self.of == GuardOf::PreviousSecret
    }
}

fn terms(policy: &Policy, lease: Duration, transaction: bool, limit: Option<Duration>) -> Terms {
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
                    GuardRules::of_equal_calls(&policy, transaction, limit).terms;
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
        let terms = GuardRules::of_equal_calls(&short, true, Some(LIMIT)).terms;
        assert!(terms.lease > LIMIT * 3, "{terms:?}");
    }

    #[test]
    fn equal_calls_are_minded_for_their_window() {
        let policy = Policy::default();
        for transaction in [false, true] {
            let rules = GuardRules::of_equal_calls(&policy, transaction, None);
            assert_eq!(rules.retention, policy.rotated_keys_window);
            assert_ne!(rules.retention, policy.retention);
            assert!(!rules.has_mark());
        }
    }
}
