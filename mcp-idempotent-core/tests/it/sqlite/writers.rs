//! One writer at a time: who waits, who does not, and for how long.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use mcp_idempotent_core::{
    Store,
    store::{Claimed, End, StoreErrorKind, TransactionStore},
};

use super::*;

#[tokio::test]
async fn replays_go_on_while_a_handler_writes() {
    let database = Database::new().await;
    let (store, other) = (database.store(), database.store());
    call(&store, &claim(1), "rent", b"paid").await;
    let mut writing = begin(&store, &claim(2)).await;
    pay(&mut writing, "slow").await;
    for store in [&store, &other] {
        assert_eq!(response(&found(store, &claim(1)).await), b"paid");
        let Claimed::Found(_) = store.claim(&claim(1)).await.unwrap() else {
            panic!("claimed twice")
        };
        assert!(store.look_up(&claim(2)).await.unwrap().is_none());
    }
    let end = End::Commit(completion(b""));
    store.end(writing, Some(&claim(2)), end).await;
}

#[tokio::test]
async fn writers_queue_and_all_get_through_within_the_bound() {
    let database = Database::new().await;
    let stores = [database.store(), database.store(), database.store()];
    let calls = (0..60).map(|n| {
        let store = stores[usize::from(n) % 3].clone();
        tokio::spawn(async move { call(&store, &claim(n), "paid", b"").await })
    });
    for call in futures_util::future::join_all(calls).await {
        call.unwrap();
    }
    assert_eq!(database.payments().await.len(), 60);
}

#[tokio::test]
async fn same_call_in_the_queue_finds_the_record_of_the_first() {
    let database = Database::new().await;
    let stores = [database.store(), database.store()];
    let mut first = begin(&stores[0], &claim(1)).await;
    pay(&mut first, "rent").await;
    let waiting: Vec<_> = (0..8)
        .map(|n| {
            let store = stores[n % 2].clone();
            tokio::spawn(async move { response(&found(&store, &claim(1)).await).to_vec() })
        })
        .collect();
    tokio::task::yield_now().await;
    let end = End::Commit(completion(b"paid"));
    stores[0].end(first, Some(&claim(1)), end).await;
    for found in futures_util::future::join_all(waiting).await {
        assert_eq!(found.unwrap(), b"paid");
    }
    assert_eq!(database.payments().await, ["rent"]);
}

#[tokio::test]
async fn past_the_bound_it_is_busy_and_nothing_is_committed() {
    let database = Database::new().await;
    let bounded = || {
        database
            .builder()
            .with_wait_bound(Duration::from_millis(250))
            .build()
            .unwrap()
    };
    // In the queue of one store, and at the file's lock from another.
    let (store, other) = (bounded(), bounded());
    let writing = begin(&store, &claim(1)).await;
    for store in [&store, &other] {
        let started = Instant::now();
        let transaction = store.begin(&claim(2).call, Some(&claim(2))).await;
        let error = transaction.unwrap_err();
        assert!(!error.to_string().contains("locked"), "{error}");
        assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}");
        assert!(error.is_transient());
        let error = store.claim(&claim(2)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}");
        let error = store.sweep(1).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}");
        assert!(started.elapsed() >= Duration::from_millis(750));
        assert!(started.elapsed() < Duration::from_secs(5));
    }
    store.end(writing, Some(&claim(1)), End::RollBack).await;
    call(&other, &claim(2), "rent", b"").await;
    assert_eq!(database.payments().await, ["rent"]);
}

#[tokio::test]
async fn waiting_calls_hold_no_connection_of_the_pool() {
    let database = Database::new().await;
    let pool = database.pool(2);
    let store = SqliteStore::new(pool.clone());
    let writing = begin(&store, &claim(1)).await;
    let waiting: Vec<_> = (2..40)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { call(&store, &claim(n), "paid", b"").await })
        })
        .collect();
    // All have looked up and are in the queue when the pool is idle again.
    until(|| async {
        pool.num_idle() > 0 && usize::try_from(pool.size()).unwrap() == pool.num_idle()
    })
    .await;
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM payment")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(seen, 0);
    store.end(writing, Some(&claim(1)), End::RollBack).await;
    for call in futures_util::future::join_all(waiting).await {
        call.unwrap();
    }
    assert_eq!(database.payments().await.len(), 38);
}

#[tokio::test]
async fn handler_that_reads_through_a_pool_of_one_does_not_starve() {
    let database = Database::new().await;
    let store = SqliteStore::new(database.pool(1));
    let mut transaction = begin(&store, &claim(1)).await;
    pay(&mut transaction, "rent").await;
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM payment")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!(seen, 0);
    let end = End::Commit(completion(b""));
    store.end(transaction, Some(&claim(1)), end).await;
}

#[tokio::test]
async fn authors_own_writer_is_waited_for() {
    let database = Database::new().await;
    let store = database.store();
    let mut own = store.pool().begin_with("BEGIN IMMEDIATE").await.unwrap();
    pay(&mut own, "by hand").await;
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { call(&store, &claim(1), "rent", b"").await }
    });
    tokio::task::yield_now().await;
    own.commit().await.unwrap();
    waiting.await.unwrap();
    assert_eq!(database.payments().await, ["by hand", "rent"]);
}

/// Not a test of its own: what the second process does.
#[tokio::test]
async fn second_process() {
    let Ok(path) = std::env::var("MCP_IDEMPOTENT_TEST_FILE") else {
        return;
    };
    let store = SqliteStore::open(path).await.unwrap();
    for key in 0..20 {
        race(&store, key).await;
    }
    if std::env::var_os("MCP_IDEMPOTENT_TEST_DIE").is_some() {
        let mut transaction = begin(&store, &claim(100)).await;
        pay(&mut transaction, "never").await;
        std::process::abort();
    }
}

async fn race(store: &SqliteStore, key: u8) {
    let claim = claim(key);
    if let Claimed::New(mut transaction) = store.begin(&claim.call, Some(&claim)).await.unwrap() {
        pay(&mut transaction, &format!("key {key}")).await;
        let end = End::Commit(completion(b"paid"));
        store.end(transaction, Some(&claim), end).await;
    }
    assert_eq!(response(&found(store, &claim).await), b"paid");
}

fn start_second_process(database: &Database, die: bool) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "sqlite::writers::second_process"])
        .env("MCP_IDEMPOTENT_TEST_FILE", database.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if die {
        command.env("MCP_IDEMPOTENT_TEST_DIE", "1");
    }
    command.spawn().unwrap()
}

#[tokio::test]
async fn two_processes_have_one_effect_a_key() {
    let database = Database::new().await;
    let mut second = start_second_process(&database, false);
    let store = database.store();
    for key in (0..20).rev() {
        race(&store, key).await;
    }
    assert!(second.wait().unwrap().success());
    let mut payments = database.payments().await;
    payments.sort();
    let mut expected: Vec<_> = (0..20).map(|key| format!("key {key}")).collect();
    expected.sort();
    assert_eq!(payments, expected);
}

#[tokio::test]
async fn process_that_dies_in_a_handler_leaves_the_key_free() {
    let database = Database::new().await;
    let mut second = start_second_process(&database, true);
    assert!(!second.wait().unwrap().success());
    let store = database.store();
    assert_eq!(database.payments().await.len(), 20);
    call(&store, &claim(100), "after the crash", b"").await;
    assert_eq!(database.payments().await.last().unwrap(), "after the crash");
}
