//! Lease mode, besides what the conformance suite covers.

use std::time::Duration;

use mcp_idempotent_core::Store;

use super::database::{Database, claim, lease, result};

#[tokio::test]
async fn a_claim_is_durable_and_a_completion_need_not_be_whatever_the_defaults() {
    for (default, claimed) in [
        ("off", "on"),
        ("on", "on"),
        ("remote_apply", "remote_apply"),
    ] {
        let database = Database::with_options(|options| {
            options.options([
                ("synchronous_commit", default),
                ("default_transaction_isolation", "serializable"),
            ])
        })
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
            .release(&second, std::time::Duration::ZERO)
            .await
            .unwrap();
        let expected = [
            ("INSERT", claimed),
            ("UPDATE", "off"),
            ("INSERT", claimed),
            ("DELETE", default),
        ]
        .map(|(change, durability)| format!("{change} {durability} read committed"));
        assert_eq!(database.witnessed().await, expected);
    }
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
