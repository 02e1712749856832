//! Futures dropped at every await point, and errors on the way: a pooled connection never stays in
//! a transaction. The pool has one connection, so that the next user gets that very one.

use std::{sync::Arc, time::Duration};

use mcp_idempotent_core::{
    CallInfo, CanonicalArguments, Engine, IdempotencyKey, OnError, Policy, Request, Scope,
    TransactionStore,
    store::{End, Ended, StoreErrorKind, postgres::PostgresStore},
};
use sqlx::Executor;

use super::{
    database::{Database, begin, claim, options},
    proxy::Proxy,
};

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

/// The server carries out a claim that was sent, whether somebody waits for the answer or not.
#[tokio::test]
async fn a_claim_whose_caller_has_gone_is_given_back() {
    let proxy = Proxy::start_late(&options(), Duration::from_millis(50));
    let database = Database::with(
        |options| proxy.options(options),
        |pool| pool.max_connections(2).test_before_acquire(false),
        |store| store,
    )
    .await;
    let engine = Engine::new("tests", database.store.clone());
    engine.verify_secret().await.unwrap();
    database.witness("TG_OP").await;
    let mut policy = Policy::default();
    policy.on_error = OnError::InDoubt;
    let policy = Arc::new(policy);
    let (scope, key) = (Scope::new("alice"), IdempotencyKey::new("key").unwrap());
    let arguments = CanonicalArguments::new(None, &[]);
    let identity = engine.identify(&scope, Some(&key), "tool", &arguments);
    proxy.fall_silent_at(0);
    let sent = async {
        while proxy.messages() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        begun = engine.begin_lease(Request::new(CallInfo::new("tool", scope), identity, &policy)) => {
            panic!("its answer is late: {begun:?}")
        }
        () = sent => {}
    }
    for change in ["INSERT", "DELETE"] {
        let seen = format!("SELECT count(*) > 0 FROM {{s}}.witness WHERE said = '{change}'");
        database.until(&seen).await;
    }
}
