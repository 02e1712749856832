//! The operator's hand, beside whoever writes.

use mcp_idempotent_core::store::{
    Audit, OperatorStore, RecordQuery, RecordStatus, Resolution, Resolved, StoreError,
    StoreErrorKind,
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
async fn call_left_in_doubt_by_its_handler_has_a_token_to_be_resolved_by() {
    let database = Database::new().await;
    let store = database.store();
    let claim = claim(1);
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let mut transaction = begin(&store, &claim).await;
        drop(sqlx::raw_sql("COMMIT").execute(&mut *transaction).await);
        let end = End::Commit(completion(b"paid"));
        store.end(transaction, Some(&claim), end).await;
        let info = store.show(claim.id).await.unwrap().unwrap();
        assert_eq!(info.status, RecordStatus::InDoubt);
        assert!(info.completed_at.is_some() && info.expires_at > info.completed_at);
        for seen in &tokens {
            let stale = resolve(&store, &claim, *seen, Resolution::Release);
            assert_eq!(stale.await.unwrap(), Resolved::Changed);
        }
        tokens.push(info.token);
        let resolved = resolve(&store, &claim, info.token, Resolution::NotCommitted);
        assert!(matches!(resolved.await.unwrap(), Resolved::Done(_)));
    }
    assert!(tokens[0] < tokens[1]);
}

#[tokio::test]
async fn resolution_without_effect_leaves_no_trace() {
    let database = Database::new().await;
    let store = database.store();
    let first = lease(&store, &claim(1)).await;
    let claimed = claim(1);
    let missed = resolve(&store, &claimed, first.token + 9, Resolution::Release);
    assert_eq!(missed.await.unwrap(), Resolved::Changed);
    let info = store.show(claim(1).id).await.unwrap().unwrap();
    assert!(info.resolved.is_none());
    assert_eq!(lease(&store, &claim(2)).await.token, first.token + 1);
}
