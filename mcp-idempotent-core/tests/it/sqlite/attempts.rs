//! Whole attempts in lease mode.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use mcp_idempotent_core::{BeginError, LeaseHandle};
use tokio::time::{sleep, timeout};

use super::*;
use crate::engine::{Outcome, Server, leases::IN_DOUBT, own, succeed};

#[tokio::test]
async fn a_transaction_limit_beyond_all_bounds_is_refused_and_not_a_panic() {
    let database = Database::new().await;
    let store = database
        .builder()
        .with_transaction_limit(Duration::MAX)
        .build()
        .unwrap();
    let answer = Server::on(store, |_| {}).call("k", succeed("done")).await;
    assert!(
        matches!(answer, Outcome::Refused("idempotency_misconfigured", ..)),
        "{answer:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whose_handler_gave_its_transaction_away_is_answered_at_once() {
    let database = Database::new().await;
    let server = Server::on(database.store(), |_| {});
    let kept = std::sync::Mutex::new(None);
    let since = Instant::now();
    let handler = async |handle: LeaseHandle| {
        let transaction = handle.begin::<SqliteStore>().await.unwrap();
        *kept.lock().unwrap() = Some(transaction);
        succeed("done").await
    };
    assert_eq!(server.call_handled("k", handler).await, IN_DOUBT);
    assert!(
        since.elapsed() < Duration::from_secs(5),
        "{:?}",
        since.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_that_outlives_a_dropped_attempt_opens_and_keeps_no_transaction() {
    let database = Database::new().await;
    let server = Server::on(database.store(), |_| {});
    for begins_before in [false, true] {
        let attempt = server.attempt(&format!("k-{begins_before}")).await;
        let handle = attempt.handle();
        if begins_before {
            drop(handle.begin::<SqliteStore>().await.unwrap());
        }
        drop(attempt);
        let begun = handle.begin::<SqliteStore>().await;
        assert!(matches!(begun, Err(BeginError::Ended)), "{begun:?}");
        // Nothing is open that would keep another one from writing.
        let other = timeout(
            Duration::from_secs(5),
            database.store().begin(&claim(1).call, None),
        )
        .await;
        assert!(matches!(other, Ok(Ok(Claimed::New(_)))), "{begins_before}");
    }
}

/// A queue of handlers in another process, which never ends.
async fn keep_writing(store: SqliteStore, holds: Duration, turns: Arc<AtomicUsize>) {
    loop {
        let Ok(Claimed::New(mut transaction)) = store.begin(&claim(1).call, None).await else {
            continue;
        };
        pay(&mut transaction, "elsewhere").await;
        sleep(holds).await;
        store.end(transaction, None, End::CommitUnrecorded).await;
        turns.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_survives_a_full_queue_of_handlers_in_another_process() {
    let database = Database::new().await;
    let limit = Duration::from_millis(500);
    let store = || {
        let store = database.builder().with_transaction_limit(limit);
        store.build().unwrap()
    };
    let elsewhere = store();
    let turns = Arc::new(AtomicUsize::new(0));
    let queue: Vec<_> = (0..8)
        .map(|_| {
            let holds = Duration::from_millis(200);
            tokio::spawn(keep_writing(elsewhere.clone(), holds, Arc::clone(&turns)))
        })
        .collect();
    let server = Server::on(store(), |policy| policy.lease = Duration::from_millis(1600));
    let handler = async |handle: LeaseHandle| {
        let before = turns.load(Ordering::SeqCst);
        // Several times the lease.
        while turns.load(Ordering::SeqCst) < before + 30 && !handle.is_lost() {
            sleep(Duration::from_millis(10)).await;
        }
        succeed("done").await
    };
    assert_eq!(server.call_handled("k", handler).await, own("done"));
    for writing in queue {
        writing.abort();
    }
}
