//! Renewals, while others want to write.

use std::sync::{Arc, Mutex};

use mcp_idempotent_core::store::{LeaseEnd, StoreErrorKind};
use tokio::task::{JoinHandle, yield_now};

use super::*;

type Events = Arc<Mutex<Vec<&'static str>>>;

fn renew(store: &SqliteStore, lease: &Lease, events: &Events) -> JoinHandle<()> {
    let (store, lease, events) = (store.clone(), lease.clone(), Arc::clone(events));
    tokio::spawn(async move {
        let renewed = store.renew(&lease, Duration::from_secs(60)).await.unwrap();
        events.lock().unwrap().push("renewed");
        assert!(matches!(renewed, LeaseEnd::Done(_)), "{renewed:?}");
    })
}

#[tokio::test]
async fn renewals_come_before_all_handlers_that_queue() {
    const HANDLERS: usize = 20;
    let database = Database::new().await;
    let store = database.store();
    let kept = lease(&store, &claim(1)).await;
    let events = Events::default();
    let first = begin_unclaimed(&store).await;
    let handlers: Vec<_> = (0..HANDLERS)
        .map(|_| {
            let (store, kept, events) = (store.clone(), kept.clone(), Arc::clone(&events));
            tokio::spawn(async move {
                let transaction = begin_unclaimed(&store).await;
                events.lock().unwrap().push("handler");
                // It falls due while this one writes.
                let renewal = renew(&store, &kept, &events);
                yield_now().await;
                store.end(transaction, None, End::CommitUnrecorded).await;
                renewal.await.unwrap();
            })
        })
        .collect();
    // One thread: all of them are in the queue now, and the renewal comes last.
    yield_now().await;
    let renewal = renew(&store, &kept, &events);
    yield_now().await;
    store.end(first, None, End::RollBack).await;
    renewal.await.unwrap();
    for handler in futures_util::future::join_all(handlers).await {
        handler.unwrap();
    }
    let events = events.lock().unwrap();
    let expected: Vec<_> = ["renewed", "handler"]
        .into_iter()
        .cycle()
        .take(2 * HANDLERS + 1)
        .collect();
    assert_eq!(*events, expected);
}

#[tokio::test]
async fn renewal_waits_for_a_handler_beyond_the_bound_of_a_call() {
    let database = Database::new().await;
    let builder = database.builder();
    let store = builder
        .with_wait_bound(Duration::from_millis(500))
        .build()
        .unwrap();
    let kept = lease(&store, &claim(1)).await;
    let writing = begin_unclaimed(&store).await;
    let events = Events::default();
    let renewal = renew(&store, &kept, &events);
    // A call that asked later has been refused.
    let refused = store.begin(&claim(2).call, None).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Busy);
    assert!(events.lock().unwrap().is_empty());
    store.end(writing, None, End::RollBack).await;
    renewal.await.unwrap();
}

#[tokio::test]
async fn renewal_waits_for_another_process_and_is_busy_past_the_bound() {
    let database = Database::new().await;
    let builder = database.builder();
    let store = builder
        .with_wait_bound(Duration::from_millis(500))
        .with_transaction_limit(Duration::from_millis(50))
        .build()
        .unwrap();
    let kept = lease(&store, &claim(1)).await;
    let other = database.store();
    let writing = begin_unclaimed(&other).await;
    for _ in 0..2 {
        let error = store.renew(&kept, Duration::from_secs(60)).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}");
        assert!(!error.to_string().contains("locked"), "{error}");
        assert!(error.is_transient());
    }
    other.end(writing, None, End::RollBack).await;
    let renewed = store.renew(&kept, Duration::from_secs(60)).await.unwrap();
    assert!(matches!(renewed, LeaseEnd::Done(_)), "{renewed:?}");
}

#[tokio::test]
async fn handler_that_waits_for_another_process_lets_a_renewal_pass() {
    let database = Database::new().await;
    let store = database.store();
    let kept = lease(&store, &claim(1)).await;
    let (other, third) = (database.store(), {
        let builder = database.builder();
        let bound = Duration::from_millis(200);
        builder.with_wait_bound(bound).build().unwrap()
    });
    let writing = begin_unclaimed(&other).await;
    let events = Events::default();
    let handler = tokio::spawn({
        let (store, events) = (store.clone(), Arc::clone(&events));
        async move {
            let transaction = begin_unclaimed(&store).await;
            events.lock().unwrap().push("handler");
            store.end(transaction, None, End::RollBack).await;
        }
    });
    yield_now().await;
    let renewal = renew(&store, &kept, &events);
    // As often as this one is refused the lock, the handler before it was too.
    let refused = third.begin(&claim(2).call, None).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Busy);
    other.end(writing, None, End::RollBack).await;
    renewal.await.unwrap();
    handler.await.unwrap();
    assert_eq!(*events.lock().unwrap(), ["renewed", "handler"]);
}

#[tokio::test]
async fn renewal_dropped_while_it_waits_does_not_stop_the_queue() {
    let database = Database::new().await;
    let store = database.store();
    let kept = lease(&store, &claim(1)).await;
    for pending in 0..6 {
        let writing = begin_unclaimed(&store).await;
        let calling = tokio::spawn({
            let store = store.clone();
            async move { call(&store, &claim(10 + pending), "paid", b"").await }
        });
        yield_now().await;
        let renewal = store.renew(&kept, Duration::from_secs(60));
        assert!(drop_at(0, renewal).await.is_none(), "it has to wait");
        store.end(writing, None, End::RollBack).await;
        let renewal = store.renew(&kept, Duration::from_secs(60));
        drop(drop_at(usize::from(pending), renewal).await);
        calling.await.unwrap();
    }
    assert_eq!(database.payments().await.len(), 6);
}
