//! Lease mode: claims, tokens, lapse.

use std::{collections::BTreeSet, time::Duration};

use mcp_idempotent_core::{
    RecordState, Store,
    store::{Claimed, Lease, LeaseEnd, Reach},
};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn claim_is_visible_to_everybody_before_the_handler_starts() {
    let database = Database::new().await;
    let (store, other) = (database.store(), database.store());
    lease(&store, &claim(1)).await;
    let Claimed::Found(record) = other.claim(&claim(1)).await.unwrap() else {
        panic!("claimed twice")
    };
    let RecordState::InProgress { lease_remaining } = record.state else {
        panic!("{record:?}")
    };
    assert!(lease_remaining <= claim(1).lease);
    assert!(lease_remaining > claim(1).lease - Duration::from_secs(60));
    assert!(matches!(
        found(&other, &claim(1)).await.state,
        RecordState::InProgress { .. }
    ));
    assert_eq!(store.reach(), Reach::Machine);
}

#[tokio::test]
async fn completed_lease_is_replayed_to_both_modes() {
    let database = Database::new().await;
    let store = database.store();
    let lease = lease(&store, &claim(1)).await;
    let done = store.complete(&lease, completion(b"sent")).await.unwrap();
    let LeaseEnd::Done(at) = done else {
        panic!("{done:?}")
    };
    let Claimed::Found(record) = store.claim(&claim(1)).await.unwrap() else {
        panic!("claimed twice")
    };
    assert_eq!(response(&record), b"sent");
    assert!(matches!(record.state, RecordState::Completed { at: found, .. } if found == at));
    assert_eq!(response(&found(&store, &claim(1)).await), b"sent");
}

#[tokio::test]
async fn released_key_is_free() {
    let database = Database::new().await;
    let store = database.store();
    let first = lease(&store, &claim(1)).await;
    assert!(matches!(
        store
            .release(&first, std::time::Duration::ZERO)
            .await
            .unwrap(),
        LeaseEnd::Done(_)
    ));
    assert!(state(&store, &claim(1)).await.is_none());
    lease(&store, &claim(1)).await;
}

#[tokio::test]
async fn abandoned_key_is_in_doubt_and_stays_so_for_its_retention() {
    let database = Database::new().await;
    let store = database.store();
    let first = lease(&store, &claim(1)).await;
    assert!(matches!(
        store.abandon(&first).await.unwrap(),
        LeaseEnd::Done(_)
    ));
    database.age(claim(1).in_doubt_retention - HOUR).await;
    assert_eq!(store.sweep(100).await.unwrap(), 0);
    for _ in 0..2 {
        let Claimed::Found(record) = store.claim(&claim(1)).await.unwrap() else {
            panic!("claimed anew")
        };
        assert!(
            matches!(record.state, RecordState::InDoubt { .. }),
            "{record:?}"
        );
    }
    for end in ends(&store, &first).await {
        assert_eq!(end, LeaseEnd::Fenced);
    }
}

/// What each way to change a lease answers.
async fn ends(store: &SqliteStore, lease: &Lease) -> [LeaseEnd; 5] {
    [
        store.renew(lease, HOUR).await.unwrap(),
        store.release(lease, HOUR).await.unwrap(),
        store.complete(lease, completion(b"late")).await.unwrap(),
        store
            .release(lease, std::time::Duration::ZERO)
            .await
            .unwrap(),
        store.abandon(lease).await.unwrap(),
    ]
}

#[tokio::test]
async fn lapsed_lease_is_in_doubt_and_its_late_attempt_is_fenced() {
    let database = Database::new().await;
    let store = database.store();
    let late = lease(&store, &claim(1)).await;
    database.age(claim(1).lease).await;
    assert!(matches!(
        state(&store, &claim(1)).await,
        Some(RecordState::InDoubt { .. })
    ));
    for end in ends(&store, &late).await {
        assert_eq!(end, LeaseEnd::Fenced);
    }
    assert_eq!(store.sweep(100).await.unwrap(), 0);
    assert!(matches!(
        state(&store, &claim(1)).await,
        Some(RecordState::InDoubt { .. })
    ));
}

#[tokio::test]
async fn stale_attempt_is_fenced_and_changes_nothing() {
    let database = Database::new().await;
    let store = database.store();
    let stale = lease(&store, &claim(1)).await;
    store
        .release(&stale, std::time::Duration::ZERO)
        .await
        .unwrap();
    let current = lease(&store, &claim(1)).await;
    for end in ends(&store, &stale).await {
        assert_eq!(end, LeaseEnd::Fenced);
    }
    assert!(matches!(
        state(&store, &claim(1)).await,
        Some(RecordState::InProgress { .. })
    ));
    store.complete(&current, completion(b"sent")).await.unwrap();
    for lease in [stale, current] {
        for end in ends(&store, &lease).await {
            assert_eq!(end, LeaseEnd::Fenced);
        }
    }
    assert_eq!(response(&found(&store, &claim(1)).await), b"sent");
}

#[tokio::test]
async fn tokens_grow_and_are_never_used_twice() {
    let database = Database::new().await;
    let (store, other) = (database.store(), database.store());
    let mut tokens = Vec::new();
    for round in 0..3 {
        for store in [&store, &other] {
            // Released, swept, and left: the next token does not depend on what is still there.
            let released = lease(store, &claim(1)).await;
            store
                .release(&released, std::time::Duration::ZERO)
                .await
                .unwrap();
            let swept = lease(store, &claim(2)).await;
            store.complete(&swept, completion(b"")).await.unwrap();
            database.age(Duration::from_secs(3600)).await;
            assert_eq!(store.sweep(100).await.unwrap(), 1);
            tokens.extend([released.token, swept.token]);
        }
        tokens.push(lease(&other, &claim(10 + round)).await.token);
    }
    let distinct: BTreeSet<_> = tokens.iter().copied().collect();
    assert_eq!(distinct.into_iter().collect::<Vec<_>>(), tokens);
}

#[tokio::test]
async fn of_many_concurrent_claims_one_is_new() {
    let database = Database::new().await;
    let stores = [database.store(), database.store()];
    for key in 0..5 {
        let claims = (0..16).map(|n| {
            let store = stores[n % 2].clone();
            tokio::spawn(async move { store.claim(&claim(key)).await.unwrap() })
        });
        let mut new = 0;
        for claimed in futures_util::future::join_all(claims).await {
            new += usize::from(matches!(claimed.unwrap(), Claimed::New(_)));
        }
        assert_eq!(new, 1);
    }
}

#[tokio::test]
async fn claim_reaches_the_disk_although_the_pool_is_less_durable() {
    let database = Database::new().await;
    let options = SqliteConnectOptions::new()
        .filename(database.path())
        .synchronous(sqlx::sqlite::SqliteSynchronous::Normal);
    let store = SqliteStore::new(SqlitePoolOptions::new().connect_lazy_with(options));
    lease(&store, &claim(1)).await;
    // In transaction mode the author's setting holds again.
    let mut transaction = begin(&store, &claim(2)).await;
    let level: i64 = sqlx::query_scalar("PRAGMA synchronous")
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(level, 1);
}

#[tokio::test]
async fn running_lease_is_not_swept_although_it_will_not_be_kept_in_doubt() {
    let database = Database::new().await;
    let store = database.store();
    let mut claim = claim(1);
    claim.in_doubt_retention = Duration::ZERO;
    let running = lease(&store, &claim).await;
    database.age(claim.lease - Duration::from_secs(60)).await;
    store.renew(&running, claim.lease).await.unwrap();
    database.age(claim.lease - Duration::from_secs(60)).await;
    assert_eq!(store.sweep(100).await.unwrap(), 0);
    assert!(matches!(
        state(&store, &claim).await,
        Some(RecordState::InProgress { .. })
    ));
    database.age(Duration::from_secs(60)).await;
    assert!(state(&store, &claim).await.is_none());
    assert_eq!(store.sweep(100).await.unwrap(), 1);
}
