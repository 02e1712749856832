//! The steps that rules are made of. A step that goes wrong fails the test.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use super::{Harness, TransactionHarness};
use crate::CanonicalArguments;
use crate::{
    fingerprint::Identity,
    key::IdempotencyKey,
    record::{Record, RecordState, Timestamp},
    scope::{Application, Scope},
    store::{
        CallInfo, Claim, Claimed, Completion, End, Ended, Lease, LeaseEnd, Store, TransactionStore,
    },
};

pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// How often a caller asks again if another one is at work, and how long it waits before that.
const ASKS: u32 = 2000;
const REST: Duration = Duration::from_millis(5);

/// A key that no other test uses.
pub(super) fn fresh_key() -> IdempotencyKey {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let key = format!("conformance-{}", COUNTER.fetch_add(1, Ordering::Relaxed));
    IdempotencyKey::new(key).expect("a valid key")
}

/// A claim that no other test makes, with a lease of one hour.
pub(super) fn fresh_claim() -> Claim {
    claim_of(&fresh_key())
}

pub(super) fn claim_of(key: &IdempotencyKey) -> Claim {
    let application = Application::new("conformance");
    let scope = Scope::new("conformance");
    let identity = Identity::new(
        &application,
        &scope,
        Some(key),
        "tool",
        &CanonicalArguments::new(None, &[]),
        None,
    );
    let mut claim = Claim::new(
        identity.id,
        identity.fingerprint,
        CallInfo::new("tool", scope),
    );
    claim.application = Some(application);
    claim.key_prefix = identity.key_prefix;
    claim.lease = 60 * MINUTE;
    claim
}

/// A claim of the same key for a different call.
pub(super) fn another_call(claim: &Claim) -> Claim {
    let mut other = claim.clone();
    other.fingerprint = fresh_claim().fingerprint;
    other
}

/// A result that is kept for a minute.
pub(super) fn result(text: &'static str) -> Completion {
    Completion::new(Some(Bytes::from_static(text.as_bytes())), MINUTE)
}

pub(super) async fn age<H: Harness>(harness: &Arc<H>, claim: &Claim, by: Duration) {
    harness.age(claim.id, by).await.expect("the record is aged");
}

pub(super) async fn lease_of<S: Store>(store: &S, claim: &Claim) -> Lease {
    match store.claim(claim).await.expect("the store answers") {
        Claimed::New(lease) => lease,
        other => panic!("expected a new claim, found {other:?}"),
    }
}

pub(super) async fn record_of<S: Store>(store: &S, claim: &Claim) -> Option<Record> {
    store.look_up(claim).await.expect("the store answers")
}

pub(super) async fn state_of<S: Store>(store: &S, claim: &Claim) -> RecordState {
    record_of(store, claim).await.expect("a record").state
}

/// The result of a completed record, and when it was completed.
pub(super) async fn completed<S: Store>(store: &S, claim: &Claim) -> (Option<Bytes>, Timestamp) {
    match state_of(store, claim).await {
        RecordState::Completed { response, at } => (response, at),
        other => panic!("expected a completed record, found {other:?}"),
    }
}

pub(super) async fn assert_result<S: Store>(store: &S, claim: &Claim, text: &str) {
    let (response, _) = completed(store, claim).await;
    assert_eq!(response.as_deref(), Some(text.as_bytes()));
}

pub(super) async fn assert_running<S: Store>(store: &S, claim: &Claim) {
    let state = state_of(store, claim).await;
    assert!(matches!(state, RecordState::InProgress { .. }), "{state:?}");
}

pub(super) async fn complete<S: Store>(store: &S, lease: &Lease, result: Completion) -> Timestamp {
    done(store.complete(lease, result).await)
}

pub(super) async fn renew<S: Store>(store: &S, lease: &Lease, period: Duration) {
    done(store.renew(lease, period).await);
}

pub(super) async fn release<S: Store>(store: &S, lease: &Lease, keep_origin: Duration) {
    done(store.release(lease, keep_origin).await);
}

pub(super) async fn abandon<S: Store>(store: &S, lease: &Lease) {
    done(store.abandon(lease).await);
}

fn done(end: Result<LeaseEnd, crate::store::StoreError>) -> Timestamp {
    match end {
        Ok(LeaseEnd::Done(at)) => at,
        other => panic!("the lease is current, and the store said {other:?}"),
    }
}

pub(super) async fn sweep<S: Store>(store: &S) -> u64 {
    store.sweep(1000).await.expect("the store answers")
}

pub(super) async fn assert_fenced<H: Harness>(harness: &Arc<H>, lease: &Lease) {
    let store = harness.store();
    let late = [
        store.renew(lease, MINUTE).await,
        store.complete(lease, result("late")).await,
        store.release(lease, Duration::ZERO).await,
        store.release(lease, MINUTE).await,
        store.abandon(lease).await,
        harness.elsewhere().complete(lease, result("late")).await,
    ];
    for end in late {
        assert!(matches!(end, Ok(LeaseEnd::Fenced)), "{end:?}");
    }
}

pub(super) async fn assert_in_doubt<H: Harness>(harness: &Arc<H>, claim: &Claim) {
    for store in [harness.store(), harness.elsewhere()] {
        let claimed = store.claim(claim).await;
        assert!(
            matches!(&claimed, Ok(Claimed::Found(record)) if matches!(record.state, RecordState::InDoubt { .. })),
            "{claimed:?}"
        );
        let state = state_of(store, claim).await;
        assert!(matches!(state, RecordState::InDoubt { .. }), "{state:?}");
    }
}

/// The answers to this many callers who ask at the same time, half of them in another process.
pub(super) async fn race<H, T, F>(
    harness: &Arc<H>,
    callers: usize,
    ask: impl Fn(Arc<H>, bool) -> F,
) -> Vec<T>
where
    H: Harness,
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let callers: Vec<_> = (0..callers)
        .map(|caller| tokio::spawn(ask(Arc::clone(harness), caller % 2 == 1)))
        .collect();
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(caller.await.expect("no panic"));
    }
    answers
}

/// The store as one of two processes sees it.
pub(super) fn store_of<H: Harness>(harness: &H, elsewhere: bool) -> &H::Store {
    if elsewhere {
        harness.elsewhere()
    } else {
        harness.store()
    }
}

pub(super) type TransactionOf<H> = <<H as Harness>::Store as TransactionStore>::Transaction;

pub(super) async fn begin<H: TransactionHarness>(
    harness: &Arc<H>,
    claim: &Claim,
) -> TransactionOf<H> {
    match harness.store().begin(&claim.call, Some(claim)).await {
        Ok(Claimed::New(transaction)) => transaction,
        Ok(other) => panic!("expected a new claim, found {}", name_of(&other)),
        Err(error) => panic!("expected a new claim, found {error:?}"),
    }
}

/// Begins a transaction without a claim, for an unprotected call or for an attempt under a lease.
pub(super) async fn begin_unclaimed<H: TransactionHarness>(
    harness: &Arc<H>,
    claim: &Claim,
) -> TransactionOf<H> {
    match harness.store().begin(&claim.call, None).await {
        Ok(Claimed::New(transaction)) => transaction,
        Ok(other) => panic!("expected a transaction, found {}", name_of(&other)),
        Err(error) => panic!("expected a transaction, found {error:?}"),
    }
}

/// Asks until the key is free (`Ok`) or a record decides (`Err`).
pub(super) async fn begin_when_free<H: TransactionHarness>(
    store: &H::Store,
    claim: &Claim,
) -> Result<TransactionOf<H>, Record> {
    for _ in 0..ASKS {
        match store.begin(&claim.call, Some(claim)).await {
            Ok(Claimed::New(transaction)) => return Ok(transaction),
            Ok(Claimed::Found(record)) => return Err(record),
            Ok(Claimed::InProgress | Claimed::Conflict) => {}
            Err(error) if error.is_transient() => {}
            Err(error) => panic!("the store did not answer: {error:?}"),
        }
        tokio::time::sleep(REST).await;
    }
    panic!("the key did not come free");
}

pub(super) fn name_of<C>(claimed: &Claimed<C>) -> String {
    match claimed {
        Claimed::New(_) => "New".to_owned(),
        Claimed::InProgress => "InProgress".to_owned(),
        Claimed::Conflict => "Conflict".to_owned(),
        Claimed::Found(record) => format!("Found({:?})", record.state),
    }
}

/// The record that a call in transaction mode finds.
pub(super) async fn found<H: TransactionHarness>(harness: &Arc<H>, claim: &Claim) -> Record {
    match harness.store().begin(&claim.call, Some(claim)).await {
        Ok(Claimed::Found(record)) => record,
        Ok(other) => panic!("expected a record, found {}", name_of(&other)),
        Err(error) => panic!("expected a record, found {error:?}"),
    }
}

pub(super) async fn write<H: TransactionHarness>(
    harness: &Arc<H>,
    transaction: &mut TransactionOf<H>,
) {
    harness
        .write(transaction)
        .await
        .expect("the row is written");
}

pub(super) async fn effects<H: TransactionHarness>(harness: &Arc<H>) -> u64 {
    harness.effects().await.expect("the rows are counted")
}

/// Ends a transaction as asked, and says when it ended.
pub(super) async fn end<H: TransactionHarness>(
    harness: &Arc<H>,
    transaction: TransactionOf<H>,
    claim: Option<&Claim>,
    end: End,
) -> Timestamp {
    match harness.store().end(transaction, claim, end).await {
        Ended::AsAsked(at) => at,
        other => panic!("expected the end that was asked for, found {other:?}"),
    }
}

/// Makes one whole call, which writes one row.
pub(super) async fn call<H: TransactionHarness>(
    harness: &Arc<H>,
    claim: &Claim,
    result: Completion,
) -> Timestamp {
    let mut transaction = begin(harness, claim).await;
    write(harness, &mut transaction).await;
    end(harness, transaction, Some(claim), End::Commit(result)).await
}
