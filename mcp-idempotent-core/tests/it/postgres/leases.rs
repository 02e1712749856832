//! Lease mode, besides what the conformance suite covers.

use std::time::Duration;

use mcp_idempotent_core::{
    Store, TransactionStore,
    store::{End, Ended},
};

use super::database::{Database, begin_unclaimed, claim, lease, result};

/// Changes of two leases, with how durably and at which isolation level each was committed.
async fn durability_of_changes(default: &str, asynchronous: bool) -> Vec<String> {
    let database = Database::with(
        |options| {
            options.options([
                ("synchronous_commit", default),
                ("default_transaction_isolation", "serializable"),
            ])
        },
        |pool| pool,
        |store| store.with_asynchronous_completions(asynchronous),
    )
    .await;
    database
        .witness(
            "concat_ws(' ', TG_OP, current_setting('synchronous_commit'), \
             current_setting('transaction_isolation'))",
        )
        .await;
    let first = lease(&database.store, &claim("one", "{}")).await;
    database
        .store
        .complete(&first, result("done"))
        .await
        .unwrap();
    let second = lease(&database.store, &claim("two", "{}")).await;
    database
        .store
        .release(&second, Duration::ZERO)
        .await
        .unwrap();
    database.witnessed().await
}

#[tokio::test]
async fn a_claim_and_a_completion_are_durable_whatever_the_default() {
    for (default, durable) in [
        ("off", "on"),
        ("on", "on"),
        ("remote_apply", "remote_apply"),
    ] {
        let expected = [
            ("INSERT", durable),
            ("UPDATE", durable),
            ("INSERT", durable),
            ("DELETE", default),
        ]
        .map(|(change, durability)| format!("{change} {durability} read committed"));
        assert_eq!(durability_of_changes(default, false).await, expected);
    }
}

/// The outside call that it records cannot be taken back.
#[tokio::test]
async fn a_completion_with_writes_is_durable_whatever_the_default() {
    for (default, asynchronous, durable) in [
        ("off", false, "on"),
        ("remote_apply", false, "remote_apply"),
        ("off", true, "off"),
    ] {
        let database = Database::with(
            |options| options.options([("synchronous_commit", default)]),
            |pool| pool,
            |store| store.with_asynchronous_completions(asynchronous),
        )
        .await;
        let claim = claim("one", "{}");
        let lease = lease(&database.store, &claim).await;
        database
            .witness("current_setting('synchronous_commit')")
            .await;
        let transaction = begin_unclaimed(&database, &claim, "effect").await;
        let end = End::Complete(lease, result("done"));
        let ended = database.store.end(transaction, None, end).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
        assert_eq!(database.witnessed().await, [durable]);
    }
}

#[tokio::test]
async fn a_completion_does_not_wait_for_the_disk_where_that_was_asked_for() {
    let expected = [
        ("INSERT", "on"),
        ("UPDATE", "off"),
        ("INSERT", "on"),
        ("DELETE", "on"),
    ]
    .map(|(change, durability)| format!("{change} {durability} read committed"));
    assert_eq!(durability_of_changes("on", true).await, expected);
}

#[tokio::test]
async fn a_sweep_passes_by_a_record_that_somebody_holds() {
    let database = Database::new().await;
    for key in ["held", "free"] {
        let lease = lease(&database.store, &claim(key, "{}")).await;
        database
            .store
            .complete(&lease, result("done"))
            .await
            .unwrap();
        database.age(lease.id, Duration::from_secs(120)).await;
    }
    let mut holder = database.outside.begin().await.unwrap();
    sqlx::query(database.sql("SELECT 1 FROM {s}.records WHERE id = $1 FOR UPDATE"))
        .bind(claim("held", "{}").id.as_bytes().as_slice())
        .execute(&mut *holder)
        .await
        .unwrap();
    assert_eq!(database.store.sweep(10).await.unwrap(), 1);
    holder.rollback().await.unwrap();
    assert_eq!(database.store.sweep(10).await.unwrap(), 1);
    assert_eq!(database.records().await, 0);
}
