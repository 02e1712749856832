//! Calls in doubt, taken over.

use std::process::{Child, Command, Stdio};

use mcp_idempotent_core::store::LeaseEnd;

use super::*;

async fn token_in_doubt(store: &SqliteStore, claim: &Claim) -> i64 {
    match state(store, claim).await {
        Some(RecordState::InDoubt { token, .. }) => token,
        other => panic!("expected a record in doubt, found {other:?}"),
    }
}

#[tokio::test]
async fn of_two_stores_racing_to_take_over_one_wins_each_time() {
    let database = Database::new().await;
    let stores = [database.store(), database.store()];
    let first = lease(&stores[0], &claim(1)).await;
    let mut current = first.clone();
    for round in 2..6 {
        database.age(claim(1).lease).await;
        let token = token_in_doubt(&stores[1], &claim(1)).await;
        assert_eq!(token, current.token);
        let racers = (0..12).map(|n| {
            let store = stores[n % 2].clone();
            tokio::spawn(async move { store.take_over(&claim(1), token).await.unwrap() })
        });
        let mut won = Vec::new();
        for racer in futures_util::future::join_all(racers).await {
            won.extend(racer.unwrap());
        }
        assert_eq!(won.len(), 1, "{won:?}");
        for store in &stores {
            let late = store.complete(&current, completion(b"late")).await.unwrap();
            assert_eq!(late, LeaseEnd::Fenced);
        }
        let next = won.remove(0);
        assert!(next.token > current.token);
        assert_eq!((next.origin, next.attempts), (first.token, round));
        current = next;
    }
    let end = stores[1].complete(&current, completion(b"sent")).await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
    assert_eq!(response(&found(&stores[0], &claim(1)).await), b"sent");
}

#[tokio::test]
async fn take_over_that_finds_nothing_uses_no_token() {
    let database = Database::new().await;
    let store = database.store();
    let first = lease(&store, &claim(1)).await;
    assert!(
        store
            .take_over(&claim(1), first.token)
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        store
            .take_over(&claim(2), first.token)
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(lease(&store, &claim(2)).await.token, first.token + 1);
}

#[tokio::test]
async fn take_over_reaches_the_disk_although_the_pool_is_less_durable() {
    let database = Database::new().await;
    let options = SqliteConnectOptions::new()
        .filename(database.path())
        .synchronous(sqlx::sqlite::SqliteSynchronous::Normal);
    let store = SqliteStore::new(SqlitePoolOptions::new().connect_lazy_with(options));
    let first = lease(&store, &claim(1)).await;
    store.abandon(&first).await.unwrap();
    assert!(
        store
            .take_over(&claim(1), first.token)
            .await
            .unwrap()
            .is_some()
    );
    // What is written next without asking for less still is as durable.
    store.sweep(1).await.unwrap();
    let mut transaction = begin(&store, &claim(2)).await;
    let level: i64 = sqlx::query_scalar("PRAGMA synchronous")
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(level, 1, "the author's setting holds again");
}

/// Not a test of its own: what the process does that is killed.
#[tokio::test]
async fn process_that_acts_and_hangs() {
    let Ok(path) = std::env::var("MCP_IDEMPOTENT_TEST_HANGING") else {
        return;
    };
    let store = SqliteStore::open(path).await.unwrap();
    lease(&store, &claim(1)).await;
    sqlx::query("INSERT INTO payment (note) VALUES ('outside')")
        .execute(store.pool())
        .await
        .unwrap();
    std::future::pending().await
}

fn start_process(database: &Database) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sqlite::take_over::process_that_acts_and_hangs"])
        .env("MCP_IDEMPOTENT_TEST_HANGING", database.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn process_killed_before_its_completion_leaves_the_call_in_doubt_to_be_taken_over() {
    let database = Database::new().await;
    let mut process = start_process(&database);
    until(|| async { database.payments().await == ["outside"] }).await;
    process.kill().unwrap();
    process.wait().unwrap();
    let store = database.store();
    assert!(matches!(
        state(&store, &claim(1)).await,
        Some(RecordState::InProgress { .. })
    ));
    database.age(claim(1).lease).await;
    let Claimed::Found(record) = store.claim(&claim(1)).await.unwrap() else {
        panic!("ran twice")
    };
    let RecordState::InDoubt {
        token, attempts, ..
    } = record.state
    else {
        panic!("{record:?}")
    };
    assert_eq!(attempts, 1);
    let second = store.take_over(&claim(1), token).await.unwrap().unwrap();
    assert_eq!((second.origin, second.attempts), (token, 2));
    let end = store.complete(&second, completion(b"sent")).await.unwrap();
    assert!(matches!(end, LeaseEnd::Done(_)), "{end:?}");
    assert_eq!(response(&found(&store, &claim(1)).await), b"sent");
}
