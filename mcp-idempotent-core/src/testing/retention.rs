//! Rules for how long a transaction's record is kept.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    TransactionHarness,
    step::{
        MINUTE, age, another_call, assert_result, begin, call, completed, effects, end, found,
        fresh_claim, lease_of, record_of, result, state_of, sweep,
    },
};
use crate::{
    policy::OnExpired,
    record::RecordState,
    store::{Claim, Completion, End},
};

fn refusing(claim: &Claim) -> Claim {
    let mut refusing = claim.clone();
    refusing.on_expired = OnExpired::Refuse;
    refusing
}

fn with_tombstone(tombstone: Duration) -> Completion {
    let mut completion = result("old");
    completion.tombstone = tombstone;
    completion
}

pub async fn a_committed_record_counts_until_its_retention_ends_and_not_after<
    H: TransactionHarness,
>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let mut completion = result("once");
    completion.retention = 60 * MINUTE;
    call(&harness, &claim, completion).await;
    age(&harness, &claim, 59 * MINUTE).await;
    assert_result(harness.store(), &claim, "once").await;
    found(&harness, &claim).await;
    age(&harness, &claim, MINUTE).await;
    assert!(record_of(harness.store(), &claim).await.is_none());
    call(&harness, &another_call(&claim), result("again")).await;
    assert_result(harness.store(), &claim, "again").await;
    assert_eq!(effects(&harness).await, 2);
}

pub async fn whatever_ends_on_an_expired_record_replaces_it<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let large = Bytes::from(vec![b'x'; 100_000]);
    let large = || Completion::new(Some(large.clone()), MINUTE);
    for ends in [
        End::Commit(result("old")),
        End::Commit(result("new")),
        End::Commit(large()),
        End::Commit(large()),
        End::RollBackAndRecord(large()),
        End::RollBackAndRecord(result("declined")),
    ] {
        let (End::Commit(asked) | End::RollBackAndRecord(asked)) = &ends else {
            panic!("a record is asked for");
        };
        let asked = asked.response.clone();
        let transaction = begin(&harness, &claim).await;
        end(&harness, transaction, Some(&claim), ends).await;
        assert!(completed(harness.store(), &claim).await.0 == asked);
        age(&harness, &claim, 2 * MINUTE).await;
        assert!(record_of(harness.store(), &claim).await.is_none());
    }
    let lease = lease_of(harness.store(), &claim).await;
    assert_eq!((lease.origin, lease.attempts), (lease.token, 1));
    age(&harness, &claim, claim.lease + claim.in_doubt_retention).await;
    assert_eq!(sweep(harness.store()).await, 1);
}

pub async fn an_expired_key_is_refused_while_its_tombstone_is_kept_swept_or_not<
    H: TransactionHarness,
>(
    harness: Arc<H>,
) {
    let (store, claim) = (harness.store(), fresh_claim());
    let refusing = refusing(&claim);
    call(&harness, &claim, with_tombstone(10 * MINUTE)).await;
    age(&harness, &claim, MINUTE).await;
    for swept in [1, 0] {
        let state = found(&harness, &refusing).await.state;
        assert!(matches!(state, RecordState::Expired), "{state:?}");
        let state = state_of(store, &refusing).await;
        assert!(matches!(state, RecordState::Expired), "{state:?}");
        assert!(record_of(store, &claim).await.is_none());
        assert_eq!(sweep(store).await, swept);
    }
    age(&harness, &claim, 10 * MINUTE).await;
    let transaction = begin(&harness, &refusing).await;
    end(&harness, transaction, Some(&refusing), End::RollBack).await;
    sweep(store).await;
    assert_eq!(sweep(store).await, 0);
    call(&harness, &refusing, result("new")).await;
    assert_result(store, &refusing, "new").await;
}

pub async fn a_tombstone_does_not_stop_a_call_that_takes_expired_for_new<H: TransactionHarness>(
    harness: Arc<H>,
) {
    for swept in [false, true] {
        let claim = fresh_claim();
        call(&harness, &claim, with_tombstone(10 * MINUTE)).await;
        age(&harness, &claim, 2 * MINUTE).await;
        if swept {
            assert_eq!(sweep(harness.store()).await, 1);
        }
        call(&harness, &claim, result("anew")).await;
        assert_result(harness.store(), &claim, "anew").await;
    }
}

pub async fn a_record_without_a_tombstone_is_gone_at_its_expiry<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let refusing = refusing(&fresh_claim());
    call(&harness, &refusing, result("old")).await;
    age(&harness, &refusing, MINUTE).await;
    for swept in [1, 0] {
        assert!(record_of(harness.store(), &refusing).await.is_none());
        assert_eq!(sweep(harness.store()).await, swept);
    }
}

pub async fn a_retention_without_end_does_not_overflow<H: TransactionHarness>(harness: Arc<H>) {
    for response in [None, Some(Bytes::new())] {
        let claim = fresh_claim();
        let mut completion = Completion::new(response, Duration::MAX);
        completion.tombstone = Duration::MAX;
        call(&harness, &claim, completion).await;
        let state = found(&harness, &claim).await.state;
        assert!(matches!(state, RecordState::Completed { .. }), "{state:?}");
        assert_eq!(sweep(harness.store()).await, 0);
    }
}
