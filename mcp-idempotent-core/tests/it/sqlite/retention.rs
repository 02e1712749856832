//! Expiry, tombstones, sweep.

use std::time::Duration;

use mcp_idempotent_core::{
    Store,
    store::{Claimed, End, Ended, TransactionStore},
};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

async fn rows(database: &Database) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM mcp_idempotent_record")
        .fetch_one(&database.pool(1))
        .await
        .unwrap()
}

#[tokio::test]
async fn retention_starts_when_the_call_ends() {
    let database = Database::new().await;
    let store = database.store();
    let transaction = begin(&store, &claim(1)).await;
    let before: i64 = sqlx::query_scalar("SELECT CAST(strftime('%s', 'now') AS INTEGER)")
        .fetch_one(store.pool())
        .await
        .unwrap();
    let Ended::AsAsked(at) = store
        .end(transaction, Some(&claim(1)), End::Commit(completion(b"")))
        .await
    else {
        panic!("not committed")
    };
    assert!(at.as_micros() >= before * 1_000_000);
    let (completed, expires): (i64, i64) =
        sqlx::query_as("SELECT completed_at, expires_at FROM mcp_idempotent_record")
            .fetch_one(store.pool())
            .await
            .unwrap();
    assert_eq!(completed, at.as_micros());
    assert_eq!(expires - completed, 3_600_000_000);
}

#[tokio::test]
async fn sweep_takes_the_result_and_leaves_the_tombstone() {
    let database = Database::new().await;
    let store = database.store();
    let transaction = begin(&store, &claim(1)).await;
    let mut completion = completion(b"paid");
    completion.tombstone = HOUR;
    let end = End::Commit(completion);
    store.end(transaction, Some(&claim(1)), end).await;
    database.age(claim(1).id, HOUR).await;
    assert_eq!(store.sweep(10).await.unwrap(), 1);
    let kept: (i64, Option<Vec<u8>>) =
        sqlx::query_as("SELECT state, response FROM mcp_idempotent_record")
            .fetch_one(store.pool())
            .await
            .unwrap();
    assert_eq!(kept, (3, None), "the result is gone, the tombstone is not");
    database.age(claim(1).id, HOUR).await;
    assert_eq!(store.sweep(10).await.unwrap(), 1);
    assert_eq!(rows(&database).await, 0);
}

#[tokio::test]
async fn sweep_keeps_to_its_limit_and_to_what_has_expired() {
    let database = Database::new().await;
    let store = database.store();
    sqlx::query(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 700) \
         INSERT INTO mcp_idempotent_record (id, fingerprint, state, token, tool, created_at, \
         completed_at, expires_at, purge_at, sweep_at) \
         SELECT CAST(printf('%032d', n) AS BLOB), x'00', 1, 0, 'pay', 1, 1, 2, 2, 2 FROM n",
    )
    .execute(store.pool())
    .await
    .unwrap();
    call(&store, &claim(1), "rent", b"paid").await;
    assert!(matches!(
        store.claim(&claim(2)).await.unwrap(),
        Claimed::New(_)
    ));
    assert_eq!(store.sweep(0).await.unwrap(), 0);
    assert_eq!(store.sweep(3).await.unwrap(), 3);
    assert_eq!(rows(&database).await, 699);
    assert_eq!(store.sweep(10_000).await.unwrap(), 697);
    assert_eq!(store.sweep(10_000).await.unwrap(), 0);
    assert_eq!(response(&found(&store, &claim(1)).await), b"paid");
}
