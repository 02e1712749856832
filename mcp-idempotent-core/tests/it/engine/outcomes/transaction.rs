//! The same in transaction mode, on a SQLite file.

use mcp_idempotent_core::{engine::Interrupted, store::sqlite::SqliteStore};

use super::{
    super::transaction::{LONG, Server},
    *,
};

fn success() -> Reply {
    Reply::new(ResultKind::Success, "one")
}

#[tokio::test]
async fn a_committed_call_and_its_retry_are_counted_as_such() {
    record!(seen);
    let server = Server::new(LONG, |_| {}).await;
    server.call(success()).await;
    assert_eq!(counted(&seen), one("executed"));
    server.call(success()).await;
    assert_eq!(counted(&seen), one("replayed"));
}

#[tokio::test]
async fn a_call_that_polls_for_another_process_waits_as_well() {
    record!(seen);
    let here = Server::new(LONG, |policy| {
        policy.wait = Wait::UpTo(Duration::from_millis(1))
    })
    .await;
    let there = Engine::new(
        "tests",
        SqliteStore::builder(here.engine.store().pool().clone())
            .build()
            .unwrap(),
    );
    let running = there.begin_lease(here.request()).await;
    let mut patient = Policy::default();
    patient.wait = Wait::UpTo(Duration::from_millis(20));
    let (patient, identity) = (Arc::new(patient), here.identity());
    let call = CallInfo::new("tool", Scope::new("alice"));
    here.engine
        .begin_lease(Request::new(call, identity, &patient))
        .await;
    let seen = reported(&seen);
    let waits = &seen[&(
        telemetry::WAIT_DURATION.to_owned(),
        vec!["tool=tool".to_owned()],
    )];
    assert!(waits.len() == 1 && waits[0] > 0.0, "{waits:?}");
    let waiting = (telemetry::CALLS_WAITING.to_owned(), vec![]);
    assert_eq!(seen[&waiting], [0.0]);
    drop(running);
}

#[tokio::test]
async fn a_success_that_cannot_be_committed_is_counted_as_not_committed() {
    record!(seen);
    let server = Server::new(LONG, |_| {}).await;
    let (mut transaction, attempt) = server.begin().await.unwrap();
    attempt
        .run(async {
            for sql in [
                "PRAGMA defer_foreign_keys = ON",
                "CREATE TABLE parent (id INTEGER PRIMARY KEY)",
                "CREATE TABLE child (parent REFERENCES parent)",
                "INSERT INTO child VALUES (1)",
            ] {
                sqlx::query(sql).execute(&mut *transaction).await.unwrap();
            }
        })
        .await
        .unwrap();
    attempt.finish(Some(transaction), &success()).await;
    assert_eq!(counted(&seen), one("not_committed"));
}

#[tokio::test]
async fn a_handler_that_ends_its_own_transaction_leaves_doubt() {
    record!(seen);
    let server = Server::new(LONG, |_| {}).await;
    let (mut transaction, attempt) = server.begin().await.unwrap();
    attempt
        .run(async {
            // The store makes it fail, or notices it afterwards.
            drop(sqlx::query("COMMIT").execute(&mut *transaction).await);
        })
        .await
        .unwrap();
    attempt.finish(Some(transaction), &success()).await;
    assert_eq!(counted(&seen), one("left_in_doubt"));
    server.call(success()).await;
    assert_eq!(counted(&seen), one("in_doubt"));
}

#[tokio::test]
async fn a_handler_that_is_stopped_is_counted_as_interrupted() {
    record!(seen);
    let server = Server::new(Duration::from_millis(50), |_| {}).await;
    let (transaction, attempt) = server.begin().await.unwrap();
    let ended = attempt.run(std::future::pending::<()>()).await;
    assert_eq!(ended, Err(Interrupted::OverTime));
    attempt
        .finish(
            Some(transaction),
            &Reply::new(ResultKind::Interrupted, "stopped"),
        )
        .await;
    assert_eq!(counted(&seen), one("interrupted"));
}
