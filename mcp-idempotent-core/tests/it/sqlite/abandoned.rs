//! Futures and transactions that are dropped half way.

use mcp_idempotent_core::store::{Claimed, End, TransactionStore};

use super::*;

/// The next user of the pool writes, and everybody sees it.
async fn next_user_is_served(database: &Database, store: &SqliteStore, note: &str) {
    sqlx::query("INSERT INTO payment (note) VALUES (?1)")
        .bind(note)
        .execute(store.pool())
        .await
        .unwrap();
    assert_eq!(database.payments().await.last().unwrap(), note);
}

#[tokio::test]
async fn begin_dropped_at_any_point_leaves_nothing_open() {
    let database = Database::new().await;
    let mut finished = false;
    for pending in 0.. {
        let store = SqliteStore::new(database.pool(1));
        let claim = claim(1);
        // A new connection first, then one that is kept: both ways through.
        for warm in [false, true] {
            if warm {
                assert!(is_free(&store, &claim).await);
            }
            let begun = drop_at(pending, store.begin(&claim.call, Some(&claim))).await;
            finished = begun.is_some();
            drop(begun);
            next_user_is_served(&database, &store, &format!("{pending} {warm}")).await;
            assert!(is_free(&store, &claim).await);
        }
        if finished && pending > 20 {
            break;
        }
    }
    assert!(finished);
}

#[tokio::test]
async fn statement_that_the_handler_left_behind_is_before_the_commit() {
    let database = Database::new().await;
    let store = database.store();
    let mut transaction = begin(&store, &claim(1)).await;
    pay(&mut transaction, "rent").await;
    // Sent and not waited for: a COMMIT that may reach SQLite after the handler has returned.
    let left_behind = async { sqlx::raw_sql("COMMIT").execute(&mut *transaction).await };
    drop_at(0, left_behind).await;
    let end = End::Commit(completion(b"paid"));
    let ended = store.end(transaction, Some(&claim(1)), end).await;
    assert!(
        matches!(ended, mcp_idempotent_core::store::Ended::EndedByHandler),
        "{ended:?}"
    );
    assert!(database.payments().await.is_empty());
    assert!(matches!(
        store.begin(&claim(1).call, Some(&claim(1))).await.unwrap(),
        Claimed::Found(_)
    ));
}

#[tokio::test]
async fn a_statement_that_outlasts_its_handler_is_interrupted() {
    let database = Database::new().await;
    let store = database.store();
    let claim = claim(1);
    let mut transaction = begin(&store, &claim).await;
    pay(&mut transaction, "never").await;
    let endless = sqlx::query(
        "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    );
    let handler = endless.execute(&mut *transaction);
    let limited = tokio::time::timeout(Duration::from_millis(50), handler).await;
    assert!(limited.is_err(), "it has no end");
    let end = store.end(transaction, Some(&claim), End::RollBack);
    let ended = tokio::time::timeout(Duration::from_secs(20), end)
        .await
        .expect("the rollback does not wait for it");
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    super::call(&store, &claim, "rent", b"paid").await;
    assert_eq!(database.payments().await, ["rent"]);
}
