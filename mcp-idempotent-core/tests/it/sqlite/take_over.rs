//! A process that is killed in the middle of a call in lease mode.

use std::process::{Child, Command, Stdio};

use mcp_idempotent_core::store::LeaseEnd;

use super::*;

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
    database.age(claim(1).id, claim(1).lease).await;
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
