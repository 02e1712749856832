//! What is left of a key that was given back, which a transaction writes over and does not remove.

use mcp_idempotent_core::store::{
    Audit, OperatorStore, RecordInfo, RecordStatus, Resolution, ResolutionKind, Resolved,
};

use super::*;

async fn show(store: &SqliteStore, claim: &Claim) -> RecordInfo {
    store.show(claim.id).await.unwrap().unwrap()
}

/// A key that an operator has given back; the token of its first attempt.
async fn resolved(store: &SqliteStore, resolution: &Resolution) -> Lease {
    let lease = lease(store, &claim(1)).await;
    let audit = Audit::new("carol", "the other side has nothing").unwrap();
    let resolved = store.resolve(claim(1).id, lease.token, resolution, &audit);
    let resolved = resolved.await.unwrap();
    assert!(matches!(resolved, Resolved::Done(_)), "{resolved:?}");
    lease
}

#[tokio::test]
async fn call_over_a_free_key_keeps_its_trail() {
    let database = Database::new().await;
    let store = database.store();
    resolved(&store, &Resolution::Release).await;
    let freed = show(&store, &claim(1)).await;
    call(&store, &claim(1), "rent", b"paid").await;
    assert_eq!(response(&found(&store, &claim(1)).await), b"paid");
    let info = show(&store, &claim(1)).await;
    assert_eq!(info.status, RecordStatus::Completed);
    assert_eq!((info.created_at, info.attempts), (freed.created_at, 2));
    let trail = info.resolved.unwrap();
    assert_eq!(trail.kind, ResolutionKind::Released);
    assert_eq!(&*trail.who, "carol");
    assert_eq!(&*trail.why, "the other side has nothing");
}

#[tokio::test]
async fn call_that_is_rolled_back_leaves_the_free_key_as_it_was() {
    let database = Database::new().await;
    let store = database.store();
    let first = resolved(&store, &Resolution::Release).await;
    assert!(is_free(&store, &claim(1)).await);
    assert_eq!(show(&store, &claim(1)).await.status, RecordStatus::Released);
    let again = lease(&store, &claim(1)).await;
    assert_eq!((again.origin, again.attempts), (first.token, 2));
}

#[tokio::test]
async fn error_is_recorded_over_a_free_key() {
    let database = Database::new().await;
    let store = database.store();
    resolved(&store, &Resolution::NotCommitted).await;
    let transaction = begin(&store, &claim(1)).await;
    let end = End::RollBackAndRecord(completion(b"declined"));
    let ended = store.end(transaction, Some(&claim(1)), end).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(response(&found(&store, &claim(1)).await), b"declined");
    assert_eq!(show(&store, &claim(1)).await.attempts, 1);
}

#[tokio::test]
async fn handler_that_ends_its_transaction_over_a_free_key_leaves_it_in_doubt() {
    let database = Database::new().await;
    let store = database.store();
    let first = resolved(&store, &Resolution::Release).await;
    let mut transaction = begin(&store, &claim(1)).await;
    drop(sqlx::raw_sql("COMMIT").execute(&mut *transaction).await);
    let end = End::Commit(completion(b"paid"));
    let ended = store.end(transaction, Some(&claim(1)), end).await;
    assert!(matches!(ended, Ended::EndedByHandler), "{ended:?}");
    let Some(RecordState::InDoubt {
        token, attempts, ..
    }) = state(&store, &claim(1)).await
    else {
        panic!("the key is free")
    };
    assert!(token > first.token);
    assert_eq!(attempts, 2);
    let third = store.take_over(&claim(1), token).await.unwrap().unwrap();
    assert_eq!((third.origin, third.attempts), (first.token, 3));
}
