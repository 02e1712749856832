//! Futures and transactions that are dropped half way.

use mcp_idempotent_core::{
    Store,
    store::{Claimed, End, TransactionStore},
};

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
async fn end_dropped_at_any_point_leaves_both_or_neither() {
    let database = Database::new().await;
    let store = SqliteStore::new(database.pool(1));
    let (mut kept, mut lost, mut finished) = (0, 0, 0);
    // At which pending poll the commit is sent depends on how fast the driver's thread is.
    for round in 0..250 {
        let claim = claim(round);
        let mut transaction = begin(&store, &claim).await;
        let note = format!("paid {round}");
        pay(&mut transaction, &note).await;
        let end = End::Commit(completion(b"paid"));
        let ended = drop_at(
            usize::from(round) % 4,
            store.end(transaction, Some(&claim), end),
        )
        .await;
        next_user_is_served(&database, &store, &format!("next {round}")).await;
        let recorded = !is_free(&store, &claim).await;
        let effect = database.payments().await.contains(&note);
        assert_eq!(recorded, effect, "round {round}");
        assert!(recorded || ended.is_none());
        finished += usize::from(ended.is_some());
        kept += usize::from(recorded && ended.is_none());
        lost += usize::from(!recorded);
        if kept > 0 && lost > 0 && finished > 0 {
            return;
        }
    }
    panic!("dropped before the commit {lost}, after it {kept}, not dropped {finished}");
}

#[tokio::test]
async fn claim_dropped_at_any_point_leaves_the_next_user_alone() {
    let database = Database::new().await;
    let store = SqliteStore::new(database.pool(1));
    let mut finished = false;
    for pending in 0..40 {
        let claim = claim(pending);
        finished = drop_at(pending.into(), store.claim(&claim)).await.is_some();
        next_user_is_served(&database, &store, &format!("next {pending}")).await;
        // Whether the claim was made is open; that it can be asked for is not.
        store.look_up(&claim).await.unwrap();
    }
    assert!(finished);
}

#[tokio::test]
async fn dropped_transaction_is_rolled_back_and_the_key_is_free() {
    let database = Database::new().await;
    let store = SqliteStore::new(database.pool(1));
    let mut transaction = begin(&store, &claim(1)).await;
    pay(&mut transaction, "rent").await;
    drop(transaction);
    next_user_is_served(&database, &store, "next").await;
    assert_eq!(database.payments().await, ["next"]);
    assert!(is_free(&store, &claim(1)).await);
}

#[tokio::test]
async fn transaction_dropped_in_the_middle_of_a_statement_is_rolled_back() {
    let database = Database::new().await;
    let store = database.store();
    for pending in 0..4 {
        let mut transaction = begin(&store, &claim(1)).await;
        drop_at(pending, pay(&mut transaction, "rent")).await;
        drop(transaction);
        assert!(is_free(&store, &claim(1)).await);
        assert!(database.payments().await.is_empty());
    }
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
