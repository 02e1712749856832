//! An operator at work while others write.

use mcp_idempotent_core::store::{
    Audit, OperatorStore, RecordQuery, Resolution, Resolved, StoreError, StoreErrorKind,
};

use super::*;

async fn resolve(
    store: &SqliteStore,
    claim: &Claim,
    token: i64,
    resolution: Resolution,
) -> Result<Resolved, StoreError> {
    let audit = Audit::new("carol", "asked the bank").unwrap();
    store.resolve(claim.id, token, &resolution, &audit).await
}

#[tokio::test]
async fn operator_reads_while_a_handler_writes_and_resolves_afterwards() {
    let database = Database::new().await;
    let builder = database.builder();
    let store = builder
        .with_wait_bound(Duration::from_millis(500))
        .build()
        .unwrap();
    let running = lease(&store, &claim(1)).await;
    let mut transaction = begin(&store, &claim(2)).await;
    pay(&mut transaction, "slow").await;
    let listed = store.list(&RecordQuery::default()).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].token, running.token);
    assert!(store.show(claim(1).id).await.unwrap().is_some());
    let claimed = claim(1);
    let resolving = || resolve(&store, &claimed, running.token, Resolution::Release);
    let error = resolving().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Busy);
    let end = End::Commit(completion(b""));
    store.end(transaction, Some(&claim(2)), end).await;
    let resolved = resolving().await.unwrap();
    assert!(matches!(resolved, Resolved::Done(_)), "{resolved:?}");
}

#[tokio::test]
async fn what_finds_nothing_uses_no_token_and_leaves_no_trace() {
    let database = Database::new().await;
    let store = database.store();
    let first = lease(&store, &claim(1)).await;
    let claimed = claim(1);
    let missed = resolve(&store, &claimed, first.token + 9, Resolution::Release);
    assert_eq!(missed.await.unwrap(), Resolved::Changed);
    let info = store.show(claimed.id).await.unwrap().unwrap();
    assert!(info.resolved.is_none());
    for claim in [claimed, claim(2)] {
        let taken = store.take_over(&claim, first.token).await.unwrap();
        assert!(taken.is_none(), "{taken:?}");
    }
    let last: i64 = sqlx::query_scalar("SELECT last_token FROM mcp_idempotent_store")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!(last, first.token);
}

#[tokio::test]
async fn tokens_of_calls_that_their_handlers_left_in_doubt_grow() {
    let database = Database::new().await;
    let store = database.store();
    let mut last = lease(&store, &claim(9)).await.token;
    for key in 0..2 {
        let claim = claim(key);
        let mut transaction = begin(&store, &claim).await;
        drop(sqlx::raw_sql("COMMIT").execute(&mut *transaction).await);
        let end = End::Commit(completion(b"paid"));
        store.end(transaction, Some(&claim), end).await;
        let token = store.show(claim.id).await.unwrap().unwrap().token;
        assert!(token > last);
        last = token;
    }
}
