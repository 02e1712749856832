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
async fn who_and_why_may_be_any_text() {
    let long = "é".repeat(1000);
    let texts = [
        "'; DROP TABLE records; --",
        "back\\slash \\' \\\\ $1 $$ E'\\x'",
        "naïve ‘quotes’ 名前 🦀\n\ttab \u{1}",
        "x",
        &long,
    ];
    for standard in ["on", "off"] {
        let database = Database::with(
            |options| options.options([("standard_conforming_strings", standard)]),
            |pool| pool,
            |store| store,
        )
        .await;
        for (index, said) in texts.into_iter().enumerate() {
            let claim = claim(&format!("key-{index}"), "{}");
            let lease = lease(&database.store, &claim).await;
            let audit = Audit::new(said, said).unwrap();
            let resolved = database
                .store
                .resolve(lease.id, lease.token, &Resolution::Release, &audit)
                .await;
            assert!(matches!(resolved, Ok(Resolved::Done(_))), "{resolved:?}");
            let shown = database.store.show(lease.id).await.unwrap().unwrap();
            let trail = shown.resolved.expect("a trail");
            assert_eq!((&*trail.who, &*trail.why), (said, said));
        }
    }
}

#[tokio::test]
async fn a_transaction_that_its_handler_ended_can_be_resolved_by_its_mark() {
    let database = Database::new().await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    transaction.execute("COMMIT").await.unwrap();
    let ended = database.commit(transaction, &claim, "result").await;
    assert!(matches!(ended, Ended::EndedByHandler), "{ended:?}");
    let shown = database.store.show(claim.id).await.unwrap().unwrap();
    assert_eq!(shown.status, RecordStatus::InDoubt);
    assert!(shown.token < 0, "no fencing token");
    assert!(shown.expires_at > shown.completed_at);
    // It is kept for the claim's retention, and no longer.
    database.age(claim.id, claim.in_doubt_retention / 2).await;
    assert_eq!(database.store.sweep(10).await.unwrap(), 0);
    let resolved = database
        .store
        .resolve(claim.id, shown.token, &Resolution::NotCommitted, &audit())
        .await;
    assert!(matches!(resolved, Ok(Resolved::Done(_))), "{resolved:?}");
    let ended = database.call(&claim, "once").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
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

#[tokio::test]
async fn a_tool_is_found_by_the_name_that_it_was_called_by() {
    let database = Database::new().await;
    let mut claim = claim("key", "{}");
    claim.call.tool = "it's a \\ tool 名".into();
    lease(&database.store, &claim).await;
    let mut query = RecordQuery::default();
    query.tool = Some(claim.call.tool.clone());
    assert_eq!(database.store.list(&query).await.unwrap().len(), 1);
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
