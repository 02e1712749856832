//! Rules for transaction mode.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    TransactionHarness,
    step::{
        MINUTE, age, another_call, assert_in_doubt, assert_result, assert_running, begin,
        begin_unclaimed, begin_when_free, call, complete, completed, effects, end, found,
        fresh_claim, lease_of, name_of, race, record_of, release, result, state_of, store_of,
        write,
    },
};
use crate::{
    record::RecordState,
    store::{
        Claim, Claimed, Completion, End, Ended, Inspected, Lease, Store as _, StoreErrorKind,
        TransactionStore as _,
    },
};

pub async fn a_commit_makes_effect_and_record_visible_together<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let mut transaction = begin(&harness, &claim).await;
    write(&harness, &mut transaction).await;
    assert_eq!(effects(&harness).await, 0);
    for store in [harness.store(), harness.elsewhere()] {
        assert!(record_of(store, &claim).await.is_none());
    }
    let commit = End::Commit(result("done"));
    let committed = end(&harness, transaction, Some(&claim), commit).await;
    assert_eq!(effects(&harness).await, 1);
    for store in [harness.store(), harness.elsewhere()] {
        assert_result(store, &claim, "done").await;
        let off = completed(store, &claim).await.1.as_micros() - committed.as_micros();
        assert!(off.abs() < 1_000_000, "{off} microseconds");
    }
    assert_eq!(found(&harness, &claim).await.fingerprint, claim.fingerprint);
}

pub async fn a_committed_result_is_returned_byte_for_byte<H: TransactionHarness>(harness: Arc<H>) {
    let every_byte = (0..=u8::MAX).cycle().take(1 << 20).collect();
    for bytes in [
        Some(Vec::new()),
        Some(vec![0]),
        Some(b"{\"b\":1.0,\"a\":\"\\u0000\0\"}".to_vec()),
        Some(every_byte),
        // The result was too large.
        None,
    ] {
        let (claim, bytes) = (fresh_claim(), bytes.map(Bytes::from));
        call(&harness, &claim, Completion::new(bytes.clone(), MINUTE)).await;
        let record = found(&harness, &claim).await;
        let RecordState::Completed { response, .. } = record.state else {
            panic!("expected a completed record");
        };
        assert!(response == bytes, "the bytes differ");
    }
}

pub async fn an_inspection_sees_a_running_transaction<H: TransactionHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let mut transaction = begin(&harness, &claim).await;
    write(&harness, &mut transaction).await;
    // The caller may not know which call has the key.
    for asked in [&claim, &another_call(&claim)] {
        let seen = harness.store().inspect(asked).await;
        assert!(matches!(seen, Ok(Inspected::InProgress)), "{seen:?}");
    }
    let commit = End::Commit(result("done"));
    end(&harness, transaction, Some(&claim), commit).await;
    let seen = harness.store().inspect(&claim).await;
    assert!(matches!(seen, Ok(Inspected::Found(_))), "{seen:?}");
}

pub async fn a_roll_back_leaves_neither_effect_nor_record<H: TransactionHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let mut transaction = begin(&harness, &claim).await;
    write(&harness, &mut transaction).await;
    end(&harness, transaction, Some(&claim), End::RollBack).await;
    assert_eq!(effects(&harness).await, 0);
    assert!(record_of(harness.store(), &claim).await.is_none());
    // The key is bound to no call.
    call(&harness, &another_call(&claim), result("other")).await;
    assert_eq!(effects(&harness).await, 1);
}

pub async fn a_dropped_transaction_leaves_neither_and_the_key_is_free<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let mut transaction = begin(&harness, &claim).await;
    write(&harness, &mut transaction).await;
    drop(transaction);
    // The dropped transaction is still being rolled back.
    let freed = begin_when_free::<H>(harness.store(), &claim).await;
    drop(freed.unwrap_or_else(|found| panic!("expected a free key, found {found:?}")));
    assert_eq!(effects(&harness).await, 0);
}

pub async fn an_error_is_recorded_without_its_effect<H: TransactionHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let mut transaction = begin(&harness, &claim).await;
    write(&harness, &mut transaction).await;
    let record = End::RollBackAndRecord(result("error"));
    end(&harness, transaction, Some(&claim), record).await;
    assert_eq!(effects(&harness).await, 0);
    assert_result(harness.store(), &claim, "error").await;
}

pub async fn an_unprotected_call_commits_without_a_record<H: TransactionHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    for (ends, expected) in [
        (End::CommitUnrecorded, 1),
        (End::CommitUnrecorded, 2),
        (End::RollBack, 2),
    ] {
        let mut transaction = begin_unclaimed(&harness, &claim).await;
        write(&harness, &mut transaction).await;
        end(&harness, transaction, None, ends).await;
        assert_eq!(effects(&harness).await, expected);
    }
    drop(begin(&harness, &claim).await);
}

pub async fn racing_transactions_have_one_effect<H: TransactionHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    sixteen_callers(&harness, &claim).await;
    assert_eq!(effects(&harness).await, 1);
}

pub async fn racing_transactions_on_an_expired_record_have_one_effect_each_time<
    H: TransactionHarness,
>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    for expected in 1..=4 {
        sixteen_callers(&harness, &claim).await;
        assert_eq!(effects(&harness).await, expected);
        age(&harness, &claim, MINUTE).await;
        assert!(record_of(harness.store(), &claim).await.is_none());
    }
}

/// Sixteen callers use one key. Each asks until it has an answer.
async fn sixteen_callers<H: TransactionHarness>(harness: &Arc<H>, claim: &Claim) {
    race(harness, 16, |harness, elsewhere| {
        let claim = claim.clone();
        async move {
            let store = store_of(&*harness, elsewhere);
            let mut transaction = match begin_when_free::<H>(store, &claim).await {
                Ok(transaction) => transaction,
                Err(record) => {
                    assert!(matches!(record.state, RecordState::Completed { .. }));
                    return;
                }
            };
            write(&harness, &mut transaction).await;
            let commit = End::Commit(result("done"));
            let ended = store.end(transaction, Some(&claim), commit).await;
            assert!(
                matches!(
                    ended,
                    Ended::AsAsked(_) | Ended::Lost(_) | Ended::LostInProgress
                ) || matches!(&ended, Ended::Aborted(error) if error.is_transient()),
                "{ended:?}"
            );
        }
    })
    .await;
}

pub async fn a_lease_claim_does_not_pass_a_running_transaction<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let transaction = begin(&harness, &claim).await;
    for store in [harness.store(), harness.elsewhere()] {
        // A store with a single writer may only be able to say that it is busy.
        match store.claim(&claim).await {
            Ok(Claimed::InProgress) => {}
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Busy),
            other => panic!("expected in progress, found {other:?}"),
        }
    }
    let commit = End::Commit(result("done"));
    end(&harness, transaction, Some(&claim), commit).await;
    let claimed = harness.store().claim(&claim).await;
    assert!(
        matches!(&claimed, Ok(Claimed::Found(record)) if matches!(record.state, RecordState::Completed { .. })),
        "{claimed:?}"
    );
}

pub async fn a_transaction_does_not_pass_a_running_lease<H: TransactionHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    for store in [harness.store(), harness.elsewhere()] {
        match store.begin(&claim.call, Some(&claim)).await {
            Ok(Claimed::Found(record)) => {
                assert!(matches!(record.state, RecordState::InProgress { .. }));
            }
            Ok(other) => panic!("expected the record, found {}", name_of(&other)),
            Err(error) => panic!("the store did not answer: {error:?}"),
        }
    }
    release(harness.store(), &lease, Duration::ZERO).await;
    drop(begin(&harness, &claim).await);
}

pub async fn another_call_under_the_key_is_a_conflict_afterwards<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    call(&harness, &claim, result("done")).await;
    let found = found(&harness, &another_call(&claim)).await;
    assert_eq!(found.fingerprint, claim.fingerprint);
}

pub async fn a_completed_lease_is_replayed_to_a_transaction<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    complete(harness.store(), &lease, result("sent")).await;
    let state = found(&harness, &claim).await.state;
    assert!(
        matches!(&state, RecordState::Completed { response: Some(text), .. } if text == "sent"),
        "{state:?}"
    );
}

pub async fn a_lease_is_completed_together_with_a_transaction<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    let Ended::AsAsked(committed) = complete_with(&harness, &claim, &lease).await else {
        panic!("the lease is current");
    };
    assert_eq!(effects(&harness).await, 1);
    assert_result(harness.store(), &claim, "with an effect").await;
    assert_eq!(completed(harness.store(), &claim).await.1, committed);
}

pub async fn a_fenced_lease_commits_nothing_of_its_transaction<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let mut stale = lease_of(harness.store(), &claim).await;
    stale.token += 1;
    let ended = complete_with(&harness, &claim, &stale).await;
    assert!(matches!(ended, Ended::Fenced), "{ended:?}");
    assert_eq!(effects(&harness).await, 0);
    assert_running(harness.store(), &claim).await;
}

pub async fn a_lapsed_lease_commits_nothing_of_its_transaction<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    age(&harness, &claim, claim.lease * 2).await;
    let ended = complete_with(&harness, &claim, &lease).await;
    assert!(matches!(ended, Ended::Fenced), "{ended:?}");
    assert_eq!(effects(&harness).await, 0);
    assert_in_doubt(&harness, &claim).await;
}

pub async fn an_attempt_that_was_taken_over_commits_nothing_of_its_transaction<
    H: TransactionHarness,
>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let first = lease_of(harness.store(), &claim).await;
    age(&harness, &claim, claim.lease).await;
    let taken = harness.elsewhere().take_over(&claim, first.token).await;
    let second = taken.expect("the store answers").expect("it is in doubt");
    let ended = complete_with(&harness, &claim, &first).await;
    assert!(matches!(ended, Ended::Fenced), "{ended:?}");
    assert_eq!(effects(&harness).await, 0);
    let ended = complete_with(&harness, &claim, &second).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(effects(&harness).await, 1);
}

pub async fn a_transaction_passes_what_is_left_of_a_free_key<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    release(harness.store(), &lease, 10 * claim.lease).await;
    call(&harness, &claim, result("done")).await;
    assert_eq!(effects(&harness).await, 1);
    let state = state_of(harness.store(), &claim).await;
    assert!(matches!(state, RecordState::Completed { .. }), "{state:?}");
}

/// Completes `lease` in a transaction with one effect.
pub(super) async fn complete_with<H: TransactionHarness>(
    harness: &Arc<H>,
    claim: &Claim,
    lease: &Lease,
) -> Ended {
    let mut transaction = begin_unclaimed(harness, claim).await;
    write(harness, &mut transaction).await;
    let complete = End::Complete(lease.clone(), result("with an effect"));
    harness.store().end(transaction, None, complete).await
}
