//! Lease mode, besides what the conformance suite covers.

use std::time::Duration;

use mcp_idempotent_core::{
    RecordState, Store,
    store::{Claimed, Lease},
};

use super::database::{Database, claim, result};

async fn lease(database: &Database, key: &str) -> Lease {
    match database.store.claim(&claim(key, "{}")).await {
        Ok(Claimed::New(lease)) => lease,
        other => panic!("expected a lease, found {other:?}"),
    }
}

/// Notes the durability under which each change of a record was made.
const WITNESS: &str = "CREATE TABLE {s}.witness (change text, durability text); \
    CREATE FUNCTION {s}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
    INSERT INTO {s}.witness VALUES (TG_OP, current_setting('synchronous_commit') || ' ' || \
    current_setting('transaction_isolation')); RETURN NULL; END $$; \
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {s}.records \
    FOR EACH ROW EXECUTE FUNCTION {s}.note()";

#[tokio::test]
async fn a_claim_is_durable_and_a_completion_need_not_be_whatever_the_defaults() {
    for (default, claimed) in [
        ("off", "on"),
        ("on", "on"),
        ("remote_apply", "remote_apply"),
    ] {
        let database = Database::with(
            |options| {
                options.options([
                    ("synchronous_commit", default),
                    ("default_transaction_isolation", "serializable"),
                ])
            },
            |pool| pool,
            |store| store,
        )
        .await;
        database.execute(WITNESS).await;
        let first = lease(&database, "one").await;
        database
            .store
            .complete(&first, result("done"))
            .await
            .unwrap();
        let second = lease(&database, "two").await;
        database
            .store
            .release(&second, std::time::Duration::ZERO)
            .await
            .unwrap();
        let seen: Vec<(String, String)> =
            sqlx::query_as(database.sql("SELECT change, durability FROM {s}.witness"))
                .fetch_all(&database.outside)
                .await
                .unwrap();
        let expected = [
            ("INSERT", claimed),
            ("UPDATE", "off"),
            ("INSERT", claimed),
            ("DELETE", default),
        ]
        .map(|(change, durability)| (change.to_owned(), format!("{durability} read committed")));
        assert_eq!(seen, expected);
    }
}

#[tokio::test]
async fn a_lease_end_does_not_depend_on_the_applications_clock_or_time_zone() {
    let database = Database::with(
        |options| options.options([("TimeZone", "Pacific/Chatham")]),
        |pool| pool,
        |store| store,
    )
    .await;
    let mut claim = claim("key", "{}");
    claim.lease = Duration::from_secs(3 * 24 * 3600);
    let Ok(Claimed::New(_)) = database.store.claim(&claim).await else {
        panic!("the key is new");
    };
    let exact: bool = sqlx::query_scalar(
        database
            .sql("SELECT extract(epoch FROM lease_until - created_at) = 259200 FROM {s}.records"),
    )
    .fetch_one(&database.outside)
    .await
    .unwrap();
    assert!(exact);
    let record = database.store.look_up(&claim).await.unwrap().unwrap();
    let RecordState::InProgress { lease_remaining } = record.state else {
        panic!("expected in progress");
    };
    assert!(
        lease_remaining <= claim.lease && lease_remaining > claim.lease - Duration::from_secs(60)
    );
}

#[tokio::test]
async fn a_sweep_passes_by_a_record_that_somebody_holds() {
    let database = Database::new().await;
    for key in ["held", "free"] {
        let lease = lease(&database, key).await;
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
