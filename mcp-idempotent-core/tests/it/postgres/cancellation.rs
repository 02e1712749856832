//! Futures dropped at every await point, and errors on the way: a pooled connection never stays in
//! a transaction. The pool has one connection, so that the next user gets that very one.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use mcp_idempotent_core::{
    Store, StoreError, TransactionStore,
    store::{Claimed, End, Ended, StoreErrorKind, postgres::PostgresStore},
};
use sqlx::Executor;

use super::database::{Database, begin, claim, result};

/// Drops `future` when it is not ready at its `polls`-th poll.
async fn polled<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(move |context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// The next user of the pool writes, and everybody sees it.
async fn next_users_write_is_seen(database: &Database, what: &str) {
    database
        .pool
        .execute(
            sqlx::query(database.sql("INSERT INTO {s}.effects VALUES ($1)")).bind(what.to_owned()),
        )
        .await
        .unwrap();
    assert!(
        database.effects().await.iter().any(|seen| seen == what),
        "the write of {what} is in somebody's open transaction"
    );
}

fn in_doubt_or_free(
    claimed: &Result<Claimed<mcp_idempotent_core::store::Lease>, StoreError>,
) -> bool {
    matches!(
        claimed,
        Ok(Claimed::New(_) | Claimed::Found(_) | Claimed::InProgress)
    )
}

#[tokio::test]
async fn begin_dropped_at_any_poll_leaves_no_transaction_in_the_pool() {
    for lookup_first in [false, true] {
        let database = Database::with(
            |options| options,
            |pool| pool.max_connections(1),
            |store| {
                store
                    .with_lookup_first(lookup_first)
                    .with_on_begin(|connection, _| {
                        Box::pin(async move {
                            sqlx::query("SELECT 1").execute(connection).await?;
                            Ok(())
                        })
                    })
            },
        )
        .await;
        let mut dropped = 0;
        for polls in 0.. {
            let claim = claim(&format!("key-{polls}"), "{}");
            let begun = polled(database.store.begin(&claim.call, Some(&claim)), polls).await;
            let came_through = begun.is_some();
            drop(begun);
            next_users_write_is_seen(&database, &format!("after-{polls}")).await;
            if came_through {
                break;
            }
            dropped += 1;
        }
        // How many there are depends on how fast the server answers.
        assert!(dropped >= 1, "it was never dropped in the middle");
    }
}

#[tokio::test]
async fn a_replay_dropped_at_any_poll_leaves_no_transaction_in_the_pool() {
    let database = Database::with_pool(1).await;
    let claim = claim("key", "{}");
    database.call(&claim, "effect").await;
    for polls in 0.. {
        let begun = polled(database.store.begin(&claim.call, Some(&claim)), polls).await;
        next_users_write_is_seen(&database, &format!("after-{polls}")).await;
        if let Some(found) = begun {
            assert!(matches!(found, Ok(Claimed::Found(_))), "{found:?}");
            break;
        }
    }
}

#[tokio::test]
async fn end_dropped_at_any_poll_commits_both_or_neither() {
    for rolls_back in [false, true] {
        let database = Database::with_pool(1).await;
        for polls in 0.. {
            let key = format!("key-{polls}");
            let claim = claim(&key, "{}");
            let mut transaction = database.begin(&claim).await;
            database.write(&mut transaction, &key).await;
            let end = if rolls_back {
                End::RollBackAndRecord(result(&key))
            } else {
                End::Commit(result(&key))
            };
            let ended = polled(database.store.end(transaction, Some(&claim), end), polls).await;
            next_users_write_is_seen(&database, &format!("after-{polls}")).await;
            // The session that was left alone has ended when the key's lock is free.
            let other = database.another_process(|store| store);
            let recorded = loop {
                match other.claim(&claim).await {
                    Ok(Claimed::New(lease)) => {
                        other
                            .release(&lease, std::time::Duration::ZERO)
                            .await
                            .unwrap();
                        break false;
                    }
                    Ok(Claimed::Found(_)) => break true,
                    Ok(Claimed::InProgress) => {}
                    other => panic!("unexpected: {other:?}"),
                }
            };
            let happened = database.effects().await.contains(&key);
            assert_eq!(happened, recorded && !rolls_back, "after {polls} polls");
            if ended.is_some() {
                assert!(recorded);
                break;
            }
        }
    }
}

#[tokio::test]
async fn lease_methods_dropped_at_any_poll_leave_no_transaction_in_the_pool() {
    let database = Database::with_pool(1).await;
    for polls in 0.. {
        let claim = claim(&format!("key-{polls}"), "{}");
        let claimed = polled(database.store.claim(&claim), polls).await;
        next_users_write_is_seen(&database, &format!("claim-{polls}")).await;
        if claimed.is_some() {
            break;
        }
        assert!(in_doubt_or_free(&database.store.claim(&claim).await));
    }
    for polls in 0.. {
        let claim = claim(&format!("other-{polls}"), "{}");
        let Ok(Claimed::New(lease)) = database.store.claim(&claim).await else {
            panic!("the key is new");
        };
        let completed = polled(database.store.complete(&lease, result("done")), polls).await;
        next_users_write_is_seen(&database, &format!("complete-{polls}")).await;
        if completed.is_some() {
            break;
        }
    }
}

#[tokio::test]
async fn an_error_inside_begin_leaves_no_transaction_in_the_pool() {
    let database = Database::with_pool(1).await;
    let claim = claim("key", "{}");
    drop(database.begin(&claim).await);
    database
        .execute("ALTER TABLE {s}.records RENAME TO elsewhere")
        .await;
    let begun = database.store.begin(&claim.call, Some(&claim)).await;
    let error = begun.expect_err("the table is gone");
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(error.to_string().contains("migrate"), "{error}");
    next_users_write_is_seen(&database, "after").await;
}

#[tokio::test]
async fn a_failing_hook_rolls_back_and_the_handler_does_not_run() {
    let database = Database::with(
        |options| options,
        |pool| pool.max_connections(1),
        |store| {
            store.with_on_begin(|connection, call| {
                Box::pin(async move {
                    if &*call.tool == "refused" {
                        sqlx::query("SELECT 1 / 0").execute(connection).await?;
                    }
                    Ok(())
                })
            })
        },
    )
    .await;
    let mut claim = claim("key", "{}");
    claim.call.tool = "refused".into();
    for _ in 0..2 {
        let begun = database.store.begin(&claim.call, Some(&claim)).await;
        assert!(begun.is_err());
        next_users_write_is_seen(&database, "after").await;
    }
    claim.call.tool = "tool".into();
    drop(begin(&database.store, &claim).await);
}

#[tokio::test]
async fn a_dropped_transaction_is_rolled_back_and_its_key_comes_free() {
    let database = Database::with_pool(1).await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    database.write(&mut transaction, "undone").await;
    drop(transaction);
    let ended = database.call(&claim, "done").await;
    assert!(matches!(
        ended,
        mcp_idempotent_core::store::Ended::AsAsked(_)
    ));
    assert_eq!(database.effects().await, ["done"]);
}

#[tokio::test]
async fn a_claim_that_gets_no_connection_says_so_within_the_bound() {
    let database = Database::with(
        |options| options,
        |pool| pool.max_connections(1),
        |store| store.with_acquire_timeout(Duration::from_millis(50)),
    )
    .await;
    let _held = database.pool.acquire().await.unwrap();
    let claim = claim("key", "{}");
    let error = database
        .store
        .begin(&claim.call, Some(&claim))
        .await
        .expect_err("the only connection is taken");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("no connection came free"));
    assert_eq!(
        PostgresStore::DEFAULT_ACQUIRE_TIMEOUT,
        Duration::from_secs(5)
    );
}

#[tokio::test]
async fn a_rollback_does_not_wait_for_a_statement_that_the_handler_gave_up() {
    let database =
        Database::with_store(|store| store.with_recovery_timeout(Duration::from_millis(200))).await;
    database
        .execute("INSERT INTO {s}.effects VALUES ('locked')")
        .await;
    let mut another = database.outside.begin().await.unwrap();
    sqlx::raw_sql(database.sql("SELECT * FROM {s}.effects FOR UPDATE"))
        .execute(&mut *another)
        .await
        .unwrap();
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    let update = sqlx::query(database.sql("UPDATE {s}.effects SET what = 'changed'"));
    let update = tokio::time::timeout(
        Duration::from_millis(100),
        update.execute(&mut *transaction),
    );
    assert!(update.await.is_err(), "the row is locked");
    let end = database.store.end(transaction, Some(&claim), End::RollBack);
    let ended = tokio::time::timeout(Duration::from_secs(20), end)
        .await
        .expect("the rollback is bounded");
    assert!(matches!(ended, Ended::Aborted(_)), "{ended:?}");
    another.rollback().await.unwrap();
    // The server learns that the session is gone once the lock lets it go on.
    database
        .until("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'UPDATE {s}.effects%')")
        .await;
    let ended = database.call(&claim, "once").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.effects().await, ["locked", "once"]);
}
