//! The operator's hand, besides what the conformance suite covers.

use std::time::Duration;

use mcp_idempotent_core::{
    Audit, OperatorStore, RecordQuery, RecordStatus, Resolution, Resolved, Store, TransactionStore,
    store::{Claimed, End, Ended, StoreErrorKind, postgres::PostgresStore},
};
use sqlx::{Executor, postgres::PgPoolOptions};

use super::database::{Database, claim, lease, options, result, unique};

fn audit() -> Audit {
    Audit::new("operator", "asked the other side").unwrap()
}

#[tokio::test]
async fn the_token_of_a_transaction_that_its_handler_ended_is_no_fencing_token() {
    let database = Database::new().await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    transaction.execute("COMMIT").await.unwrap();
    let ended = database.commit(transaction, &claim, "result").await;
    assert!(matches!(ended, Ended::EndedByHandler), "{ended:?}");
    let shown = database.store.show(claim.id).await.unwrap().unwrap();
    assert!(shown.token < 0);
}

#[tokio::test]
async fn pages_of_records_of_one_moment_miss_none_and_repeat_none() {
    let database = Database::new().await;
    for key in 0..7 {
        lease(&database.store, &claim(&format!("key-{key}"), "{}")).await;
    }
    database
        .execute("UPDATE {s}.records SET created_at = '2026-03-29 00:59:59.123457+00'")
        .await;
    let mut query = RecordQuery::default();
    query.limit = 3;
    query.status = Some(RecordStatus::InProgress);
    let mut seen = Vec::new();
    loop {
        let page = database.store.list(&query).await.unwrap();
        let Some(last) = page.last() else {
            break;
        };
        query.after = Some(last.cursor());
        seen.extend(page.iter().map(|info| info.id));
    }
    assert_eq!(seen.len(), 7);
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]));
}

/// The grants that the documentation names for operators, and none.
#[tokio::test]
async fn an_operator_needs_the_documented_grants_and_a_caller_learns_which_are_missing() {
    let database = Database::new().await;
    let (operator, nobody) = (unique("operator"), unique("nobody"));
    database
        .execute(&format!(
            "CREATE ROLE {operator} LOGIN PASSWORD 'pass'; \
             CREATE ROLE {nobody} LOGIN PASSWORD 'pass'; \
             GRANT USAGE ON SCHEMA {{s}} TO {operator}, {nobody}; \
             GRANT SELECT, UPDATE ON {{s}}.records TO {operator}; \
             GRANT USAGE ON SEQUENCE {{s}}.tokens TO {operator}"
        ))
        .await;
    let store = |role: &str| {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(options().username(role).password("pass"));
        PostgresStore::builder(pool)
            .with_schema(&database.schema)
            .build()
            .unwrap()
    };
    let claim = claim("key", "{}");
    let lease = lease(&database.store, &claim).await;
    let without = store(&nobody);
    let minute = Duration::from_secs(60);
    for answer in [
        without.claim(&claim).await.map(drop),
        without.take_over(&claim, lease.token).await.map(drop),
        without.renew(&lease, minute).await.map(drop),
        without.complete(&lease, result("done")).await.map(drop),
        without.release(&lease, minute).await.map(drop),
        without.abandon(&lease).await.map(drop),
        without.sweep(1).await.map(drop),
        without.show(lease.id).await.map(drop),
        without.list(&RecordQuery::default()).await.map(drop),
        without
            .resolve(lease.id, lease.token, &Resolution::Release, &audit())
            .await
            .map(drop),
    ] {
        let error = answer.expect_err("the role may do nothing");
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("grants"), "{error}");
    }
    let Ok(Claimed::New(transaction)) = without.begin(&claim.call, None).await else {
        panic!("a transaction needs no rights of ours");
    };
    let end = End::Complete(lease.clone(), result("done"));
    let ended = without.end(transaction, None, end).await;
    assert!(
        matches!(&ended, Ended::Aborted(error) if error.kind() == StoreErrorKind::Misconfigured),
        "{ended:?}"
    );
    let with = store(&operator);
    assert_eq!(with.list(&RecordQuery::default()).await.unwrap().len(), 1);
    assert!(with.show(lease.id).await.unwrap().is_some());
    let resolution = Resolution::Committed(result("by hand"));
    let resolved = with
        .resolve(lease.id, lease.token, &resolution, &audit())
        .await;
    assert!(matches!(resolved, Ok(Resolved::Done(_))), "{resolved:?}");
    database
        .execute(&format!(
            "DROP OWNED BY {operator}, {nobody}; DROP ROLE {operator}, {nobody}"
        ))
        .await;
}
