//! Rules for an operator who meets calls in transaction mode.

use std::sync::Arc;

use super::{
    SqlHarness,
    operator::{audit, resolve, show},
    step::{
        MINUTE, age, assert_result, begin, begin_unclaimed, call, effects, end, fresh_claim,
        lease_of, release, result, sweep, write,
    },
};
use crate::store::{
    Claim, End, Ended, OperatorStore, RecordStatus, Resolution, Resolved, StoreErrorKind,
    TransactionStore as _,
};

/// Plays a handler that ends its own transaction and reports success.
async fn end_by_hand<H: SqlHarness>(harness: &Arc<H>, claim: &Claim) {
    let mut transaction = begin(harness, claim).await;
    harness.run(&mut transaction, "COMMIT").await;
    let commit = End::Commit(result("done"));
    let ended = harness.store().end(transaction, Some(claim), commit).await;
    assert!(matches!(ended, Ended::EndedByHandler), "{ended:?}");
}

pub async fn what_is_left_of_a_free_key_is_forgotten_by_a_transaction_once_it_was_kept<
    H: SqlHarness<Store: OperatorStore>,
>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let first = lease_of(harness.store(), &claim).await;
    release(harness.store(), &first, 60 * MINUTE).await;
    age(&harness, &claim, 60 * MINUTE).await;
    call(&harness, &claim, result("done")).await;
    assert_eq!(show(harness.store(), &claim).await.attempts, 1);
}

pub async fn a_call_left_in_doubt_by_its_handler_has_a_token_to_be_resolved_by<
    H: SqlHarness<Store: OperatorStore>,
>(
    harness: Arc<H>,
) {
    let (store, claim) = (harness.store(), fresh_claim());
    let mut tokens = Vec::new();
    for _ in 0..2 {
        end_by_hand(&harness, &claim).await;
        let info = show(store, &claim).await;
        assert_eq!(info.status, RecordStatus::InDoubt);
        assert!(info.completed_at.is_some() && info.expires_at > info.completed_at);
        age(&harness, &claim, claim.in_doubt_retention / 2).await;
        assert_eq!(sweep(store).await, 0);
        for seen in &tokens {
            let stale = resolve(store, &claim, *seen, &Resolution::Release).await;
            assert_eq!(stale, Resolved::Changed);
        }
        tokens.push(info.token);
        let resolved = resolve(store, &claim, info.token, &Resolution::NotCommitted).await;
        assert!(matches!(resolved, Resolved::Done(_)), "{resolved:?}");
    }
    call(&harness, &claim, result("done")).await;
}

pub async fn a_resolution_fences_the_transaction_of_a_living_attempt<
    H: SqlHarness<Store: OperatorStore>,
>(
    harness: Arc<H>,
) {
    let store = harness.store();
    let claim = fresh_claim();
    let lease = lease_of(store, &claim).await;
    let mut transaction = begin_unclaimed(&harness, &claim).await;
    write(&harness, &mut transaction).await;
    let resolution = Resolution::Committed(result("by hand"));
    let operator = harness.elsewhere();
    let mut resolved = operator
        .resolve(claim.id, lease.token, &resolution, &audit())
        .await;
    // A store with a single writer makes the operator wait for the handler's transaction.
    if matches!(&resolved, Err(error) if error.kind() == StoreErrorKind::Busy) {
        end(&harness, transaction, None, End::RollBack).await;
        resolved = operator
            .resolve(claim.id, lease.token, &resolution, &audit())
            .await;
        transaction = begin_unclaimed(&harness, &claim).await;
        write(&harness, &mut transaction).await;
    }
    assert!(matches!(resolved, Ok(Resolved::Done(_))), "{resolved:?}");
    let complete = End::Complete(lease, result("late"));
    let ended = store.end(transaction, None, complete).await;
    assert!(matches!(ended, Ended::Fenced), "{ended:?}");
    assert_eq!(effects(&harness).await, 0);
    assert_result(store, &claim, "by hand").await;
}
