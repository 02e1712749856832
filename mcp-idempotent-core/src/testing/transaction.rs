//! The rules of transaction mode.

use std::{sync::Arc, time::Duration};

use super::{TransactionHarness, another_call, fresh_claim, lease_of, record_of, result, state_of};
use crate::{
    record::RecordState,
    store::{
        Claim, Claimed, End, Ended, Inspected, LeaseEnd, Store as _, StoreErrorKind,
        TransactionStore,
    },
};

/// How often a caller that found another one at work asks again, and how long it rests before.
const ASKS: u32 = 2000;
const REST: Duration = Duration::from_millis(5);

type TransactionOf<H> = <<H as super::Harness>::Store as TransactionStore>::Transaction;

async fn begin<H: TransactionHarness>(harness: &H, claim: &Claim) -> TransactionOf<H> {
    let begun = harness
        .store()
        .begin(&claim.call, Some(claim))
        .await
        .expect("the store answers");
    match begun {
        Claimed::New(transaction) => transaction,
        other => panic!("expected a new claim, found {}", name_of(&other)),
    }
}

fn name_of<C>(claimed: &Claimed<C>) -> String {
    match claimed {
        Claimed::New(_) => "New".to_owned(),
        Claimed::InProgress => "InProgress".to_owned(),
        Claimed::Conflict => "Conflict".to_owned(),
        Claimed::Found(record) => format!("Found({:?})", record.state),
    }
}

pub async fn a_commit_makes_effect_and_record_visible_together<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let mut transaction = begin(&*harness, &claim).await;
    harness.write(&mut transaction).await;
    assert_eq!(harness.effects().await, 0);
    assert!(record_of(harness.store(), &claim).await.is_none());
    let end = End::Commit(result("done"));
    let ended = harness.store().end(transaction, Some(&claim), end).await;
    let Ended::AsAsked(committed) = ended else {
        panic!("expected a commit, found {ended:?}");
    };
    assert_eq!(harness.effects().await, 1);
    let RecordState::Completed { response, at } = state_of(harness.store(), &claim).await else {
        panic!("expected a completed record");
    };
    assert_eq!(response.as_deref(), Some(&b"done"[..]));
    assert_eq!(at, committed);
}

pub async fn an_inspection_sees_a_running_transaction<H: TransactionHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let mut transaction = begin(&*harness, &claim).await;
    harness.write(&mut transaction).await;
    // Whoever asks may not know what was asked under the key.
    for asked in [&claim, &another_call(&claim)] {
        let seen = harness.store().inspect(asked).await;
        assert!(matches!(seen, Ok(Inspected::InProgress)), "{seen:?}");
    }
    let end = End::Commit(result("done"));
    let ended = harness.store().end(transaction, Some(&claim), end).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    let seen = harness.store().inspect(&claim).await;
    assert!(matches!(seen, Ok(Inspected::Found(_))), "{seen:?}");
}

pub async fn a_roll_back_leaves_neither_effect_nor_record<H: TransactionHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let mut transaction = begin(&*harness, &claim).await;
    harness.write(&mut transaction).await;
    let ended = harness
        .store()
        .end(transaction, Some(&claim), End::RollBack)
        .await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(harness.effects().await, 0);
    assert!(record_of(harness.store(), &claim).await.is_none());
    drop(begin(&*harness, &claim).await);
}

pub async fn a_dropped_transaction_leaves_neither_and_the_key_is_free<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let mut transaction = begin(&*harness, &claim).await;
    harness.write(&mut transaction).await;
    drop(transaction);
    // The roll-back of a dropped transaction is on its way.
    let transaction = begin_when_free(&*harness, &claim).await;
    let transaction =
        transaction.unwrap_or_else(|found| panic!("expected a free key, found {found}"));
    drop(transaction);
    assert_eq!(harness.effects().await, 0);
}

pub async fn an_error_is_recorded_without_its_effect<H: TransactionHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let mut transaction = begin(&*harness, &claim).await;
    harness.write(&mut transaction).await;
    let end = End::RollBackAndRecord(result("error"));
    let ended = harness.store().end(transaction, Some(&claim), end).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(harness.effects().await, 0);
    let RecordState::Completed { response, .. } = state_of(harness.store(), &claim).await else {
        panic!("expected a completed record");
    };
    assert_eq!(response.as_deref(), Some(&b"error"[..]));
}

pub async fn an_unprotected_call_commits_without_a_record<H: TransactionHarness>(harness: Arc<H>) {
    let call = fresh_claim().call;
    for (end, effects) in [(End::CommitUnrecorded, 1), (End::RollBack, 1)] {
        let begun = harness.store().begin(&call, None).await;
        let Ok(Claimed::New(mut transaction)) = begin_ok(begun) else {
            panic!("an unprotected call always begins");
        };
        harness.write(&mut transaction).await;
        let ended = harness.store().end(transaction, None, end).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
        assert_eq!(harness.effects().await, effects);
    }
}

fn begin_ok<T, E: std::fmt::Debug>(begun: Result<T, E>) -> Result<T, E> {
    if let Err(error) = &begun {
        panic!("the store did not answer: {error:?}");
    }
    begun
}

pub async fn racing_transactions_have_one_effect<H: TransactionHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    race(&harness, &claim).await;
    assert_eq!(harness.effects().await, 1);
}

pub async fn racing_transactions_on_an_expired_record_have_one_effect_each_time<
    H: TransactionHarness,
>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    for effects in 1..=3 {
        race(&harness, &claim).await;
        assert_eq!(harness.effects().await, effects);
        harness.age(claim.id, Duration::from_secs(3600)).await;
        assert!(record_of(harness.store(), &claim).await.is_none());
    }
}

/// Sixteen callers of one key, each until it has an answer.
async fn race<H: TransactionHarness>(harness: &Arc<H>, claim: &Claim) {
    let callers = (0..16).map(|_| {
        let (harness, claim) = (Arc::clone(harness), claim.clone());
        tokio::spawn(async move {
            let Ok(mut transaction) = begin_when_free(&*harness, &claim).await else {
                return;
            };
            harness.write(&mut transaction).await;
            let end = End::Commit(result("done"));
            let ended = harness.store().end(transaction, Some(&claim), end).await;
            assert!(
                matches!(
                    ended,
                    Ended::AsAsked(_) | Ended::Lost(_) | Ended::LostInProgress
                ) || matches!(&ended, Ended::Aborted(error) if error.is_transient()),
                "{ended:?}"
            );
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("no panic");
    }
}

/// Asks until the key is free (`Ok`) or a completed record decides (`Err`, with its name).
async fn begin_when_free<H: TransactionHarness>(
    harness: &H,
    claim: &Claim,
) -> Result<TransactionOf<H>, String> {
    for _ in 0..ASKS {
        match harness.store().begin(&claim.call, Some(claim)).await {
            Ok(Claimed::New(transaction)) => return Ok(transaction),
            Ok(Claimed::Found(record)) => return Err(format!("{:?}", record.state)),
            Ok(Claimed::InProgress | Claimed::Conflict) => {}
            Err(error) if error.is_transient() => {}
            Err(error) => panic!("the store did not answer: {error:?}"),
        }
        tokio::time::sleep(REST).await;
    }
    panic!("the key did not come free");
}

pub async fn a_lease_claim_does_not_pass_a_running_transaction<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let transaction = begin(&*harness, &claim).await;
    // A store with a single writer may only be able to say that it is busy.
    match harness.store().claim(&claim).await {
        Ok(Claimed::InProgress) => {}
        Err(error) => assert_eq!(error.kind(), StoreErrorKind::Busy),
        other => panic!("expected in progress, found {other:?}"),
    }
    let end = End::Commit(result("done"));
    let ended = harness.store().end(transaction, Some(&claim), end).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    let claimed = harness.store().claim(&claim).await;
    assert!(
        matches!(&claimed, Ok(Claimed::Found(record)) if matches!(record.state, RecordState::Completed { .. })),
        "{claimed:?}"
    );
}

pub async fn a_transaction_does_not_pass_a_running_lease<H: TransactionHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    match harness.store().begin(&claim.call, Some(&claim)).await {
        Ok(Claimed::Found(record)) => {
            assert!(matches!(record.state, RecordState::InProgress { .. }));
        }
        Ok(other) => panic!("expected the record, found {}", name_of(&other)),
        Err(error) => panic!("the store did not answer: {error:?}"),
    }
    let end = harness.store().release(&lease, Duration::ZERO).await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))));
    drop(begin(&*harness, &claim).await);
}

pub async fn another_call_under_the_key_is_a_conflict_afterwards<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    let transaction = begin(&*harness, &claim).await;
    let end = End::Commit(result("done"));
    let ended = harness.store().end(transaction, Some(&claim), end).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    let other = another_call(&claim);
    match harness.store().begin(&other.call, Some(&other)).await {
        Ok(Claimed::Found(record)) => assert_eq!(record.fingerprint, claim.fingerprint),
        Ok(other) => panic!("expected the record, found {}", name_of(&other)),
        Err(error) => panic!("the store did not answer: {error:?}"),
    }
}

pub async fn a_lease_is_completed_together_with_a_transaction<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let store = harness.store();
    let claim = fresh_claim();
    let lease = lease_of(store, &claim).await;
    let mut transaction = begin_unclaimed(&*harness, &claim).await;
    harness.write(&mut transaction).await;
    let end = End::Complete(lease.clone(), result("done"));
    let ended = store.end(transaction, None, end).await;
    let Ended::AsAsked(committed) = ended else {
        panic!("expected a commit, found {ended:?}");
    };
    assert_eq!(harness.effects().await, 1);
    let RecordState::Completed { response, at } = state_of(store, &claim).await else {
        panic!("expected a completed record");
    };
    assert_eq!(response.as_deref(), Some(&b"done"[..]));
    assert_eq!(at, committed);
}

pub async fn a_fenced_lease_commits_nothing_of_its_transaction<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let store = harness.store();
    let claim = fresh_claim();
    let mut stale = lease_of(store, &claim).await;
    stale.token += 1;
    let mut transaction = begin_unclaimed(&*harness, &claim).await;
    harness.write(&mut transaction).await;
    let end = End::Complete(stale, result("late"));
    let ended = store.end(transaction, None, end).await;
    assert!(matches!(ended, Ended::Fenced), "{ended:?}");
    assert_eq!(harness.effects().await, 0);
    assert!(matches!(
        state_of(store, &claim).await,
        RecordState::InProgress { .. }
    ));
}

pub async fn a_lapsed_lease_commits_nothing_of_its_transaction<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let store = harness.store();
    let claim = fresh_claim();
    let lease = lease_of(store, &claim).await;
    harness.age(claim.id, claim.lease * 2).await;
    let mut transaction = begin_unclaimed(&*harness, &claim).await;
    harness.write(&mut transaction).await;
    let end = End::Complete(lease, result("late"));
    let ended = store.end(transaction, None, end).await;
    assert!(matches!(ended, Ended::Fenced), "{ended:?}");
    assert_eq!(harness.effects().await, 0);
    assert!(matches!(
        state_of(store, &claim).await,
        RecordState::InDoubt { .. }
    ));
}

pub async fn a_transaction_passes_what_is_left_of_a_free_key<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let store = harness.store();
    let claim = fresh_claim();
    let lease = lease_of(store, &claim).await;
    let end = store.release(&lease, 10 * claim.lease).await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
    let mut transaction = begin(&*harness, &claim).await;
    harness.write(&mut transaction).await;
    let ended = store
        .end(transaction, Some(&claim), End::Commit(result("done")))
        .await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(harness.effects().await, 1);
    assert!(matches!(
        state_of(store, &claim).await,
        RecordState::Completed { .. }
    ));
}

async fn begin_unclaimed<H: TransactionHarness>(harness: &H, claim: &Claim) -> TransactionOf<H> {
    match harness
        .store()
        .begin(&claim.call, None)
        .await
        .expect("the store answers")
    {
        Claimed::New(transaction) => transaction,
        other => panic!("expected a transaction, found {}", name_of(&other)),
    }
}
