//! Expiry, tombstones, sweep.

use std::time::Duration;

use mcp_idempotent_core::{
    OnExpired, RecordState, Store,
    store::{Claim, Claimed, Completion, End, Ended, TransactionStore},
};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn refusing(key: u8) -> Claim {
    let mut claim = claim(key);
    claim.on_expired = OnExpired::Refuse;
    claim
}

async fn call_keeping(store: &SqliteStore, claim: &Claim, tombstone: Duration) {
    let transaction = begin(store, claim).await;
    let mut completion = completion(b"paid");
    completion.tombstone = tombstone;
    store
        .end(transaction, Some(claim), End::Commit(completion))
        .await;
}

async fn rows(database: &Database) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM mcp_idempotent_record")
        .fetch_one(&database.pool(1))
        .await
        .unwrap()
}

#[tokio::test]
async fn record_counts_until_its_retention_ends_and_not_after() {
    let database = Database::new().await;
    let store = database.store();
    call(&store, &claim(1), "rent", b"paid").await;
    database.age(HOUR - Duration::from_secs(60)).await;
    assert_eq!(response(&found(&store, &claim(1)).await), b"paid");
    database.age(Duration::from_secs(60)).await;
    assert!(store.look_up(&claim(1)).await.unwrap().is_none());
    call(&store, &claim(1), "rent of May", b"paid again").await;
    assert_eq!(response(&found(&store, &claim(1)).await), b"paid again");
    assert_eq!(database.payments().await, ["rent", "rent of May"]);
}

#[tokio::test]
async fn retention_starts_when_the_call_ends() {
    let database = Database::new().await;
    let store = database.store();
    let transaction = begin(&store, &claim(1)).await;
    let before: i64 = sqlx::query_scalar("SELECT CAST(strftime('%s', 'now') AS INTEGER)")
        .fetch_one(store.pool())
        .await
        .unwrap();
    let Ended::AsAsked(at) = store
        .end(transaction, Some(&claim(1)), End::Commit(completion(b"")))
        .await
    else {
        panic!("not committed")
    };
    assert!(at.as_micros() >= before * 1_000_000);
    let (completed, expires): (i64, i64) =
        sqlx::query_as("SELECT completed_at, expires_at FROM mcp_idempotent_record")
            .fetch_one(store.pool())
            .await
            .unwrap();
    assert_eq!(completed, at.as_micros());
    assert_eq!(expires - completed, 3_600_000_000);
}

#[tokio::test]
async fn racing_calls_on_an_expired_record_have_one_effect() {
    let database = Database::new().await;
    let stores = [database.store(), database.store()];
    for key in 0..4 {
        call(&stores[0], &claim(key), "old", b"old").await;
        database.age(HOUR).await;
        let racers = (0..8).map(|n| {
            let store = stores[n % 2].clone();
            tokio::spawn(async move {
                let claim = claim(key);
                match store.begin(&claim.call, Some(&claim)).await.unwrap() {
                    Claimed::New(mut transaction) => {
                        pay(&mut transaction, "new").await;
                        let end = End::Commit(completion(b"new"));
                        let ended = store.end(transaction, Some(&claim), end).await;
                        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
                    }
                    Claimed::Found(record) => assert_eq!(response(&record), b"new"),
                    other => panic!("{other:?}"),
                }
            })
        });
        for racer in futures_util::future::join_all(racers).await {
            racer.unwrap();
        }
        let new = database.payments().await.into_iter();
        assert_eq!(
            new.filter(|note| note == "new").count(),
            usize::from(key) + 1
        );
    }
}

#[tokio::test]
async fn error_recorded_over_an_expired_record_replaces_it() {
    let database = Database::new().await;
    let store = database.store();
    call(&store, &claim(1), "old", b"old").await;
    database.age(HOUR).await;
    let transaction = begin(&store, &claim(1)).await;
    let end = End::RollBackAndRecord(completion(b"declined"));
    let ended = store.end(transaction, Some(&claim(1)), end).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(response(&found(&store, &claim(1)).await), b"declined");
}

#[tokio::test]
async fn expired_record_is_claimed_anew_in_lease_mode() {
    let database = Database::new().await;
    let store = database.store();
    call(&store, &claim(1), "old", b"old").await;
    database.age(HOUR).await;
    let claimed = store.claim(&claim(1)).await.unwrap();
    assert!(matches!(claimed, Claimed::New(_)), "{claimed:?}");
}

#[tokio::test]
async fn expired_key_is_refused_while_its_tombstone_is_kept_swept_or_not() {
    let database = Database::new().await;
    let store = database.store();
    call_keeping(&store, &claim(1), HOUR).await;
    database.age(HOUR).await;
    let record = found(&store, &refusing(1)).await;
    assert!(matches!(record.state, RecordState::Expired), "{record:?}");
    let looked_up = store.look_up(&refusing(1)).await.unwrap().unwrap();
    assert!(matches!(looked_up.state, RecordState::Expired));
    assert!(store.look_up(&claim(1)).await.unwrap().is_none());
    assert_eq!(store.sweep(10).await.unwrap(), 1);
    assert_eq!(store.sweep(10).await.unwrap(), 0);
    let kept: (i64, Option<Vec<u8>>) =
        sqlx::query_as("SELECT state, response FROM mcp_idempotent_record")
            .fetch_one(store.pool())
            .await
            .unwrap();
    assert_eq!(kept, (3, None), "the result is gone, the tombstone is not");
    let record = found(&store, &refusing(1)).await;
    assert!(matches!(record.state, RecordState::Expired), "{record:?}");
    database.age(HOUR).await;
    assert!(is_free(&store, &refusing(1)).await);
    assert_eq!(store.sweep(10).await.unwrap(), 1);
    assert_eq!(rows(&database).await, 0);
}

#[tokio::test]
async fn tombstone_does_not_stop_a_call_that_takes_expired_for_new() {
    let database = Database::new().await;
    let store = database.store();
    call_keeping(&store, &claim(1), HOUR).await;
    database.age(HOUR).await;
    store.sweep(10).await.unwrap();
    call(&store, &claim(1), "rent", b"paid anew").await;
    assert_eq!(response(&found(&store, &claim(1)).await), b"paid anew");
}

#[tokio::test]
async fn record_without_a_tombstone_is_gone_at_its_expiry_swept_or_not() {
    let database = Database::new().await;
    let store = database.store();
    call_keeping(&store, &claim(1), Duration::ZERO).await;
    database.age(HOUR).await;
    assert!(store.look_up(&refusing(1)).await.unwrap().is_none());
    assert_eq!(store.sweep(10).await.unwrap(), 1);
    assert!(store.look_up(&refusing(1)).await.unwrap().is_none());
    assert_eq!(rows(&database).await, 0);
}

#[tokio::test]
async fn sweep_keeps_to_its_limit_and_to_what_has_expired() {
    let database = Database::new().await;
    let store = database.store();
    sqlx::query(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 700) \
         INSERT INTO mcp_idempotent_record (id, fingerprint, state, token, tool, created_at, \
         completed_at, expires_at, purge_at, sweep_at) \
         SELECT CAST(printf('%032d', n) AS BLOB), x'00', 1, 0, 'pay', 1, 1, 2, 2, 2 FROM n",
    )
    .execute(store.pool())
    .await
    .unwrap();
    call(&store, &claim(1), "rent", b"paid").await;
    assert!(matches!(
        store.claim(&claim(2)).await.unwrap(),
        Claimed::New(_)
    ));
    assert_eq!(store.sweep(0).await.unwrap(), 0);
    assert_eq!(store.sweep(3).await.unwrap(), 3);
    assert_eq!(rows(&database).await, 699);
    assert_eq!(store.sweep(10_000).await.unwrap(), 697);
    assert_eq!(store.sweep(10_000).await.unwrap(), 0);
    assert_eq!(response(&found(&store, &claim(1)).await), b"paid");
}

#[tokio::test]
async fn retention_without_end_does_not_overflow() {
    let database = Database::new().await;
    let store = database.store();
    let transaction = begin(&store, &claim(1)).await;
    let mut completion = Completion::new(None, Duration::MAX);
    completion.tombstone = Duration::MAX;
    store
        .end(transaction, Some(&claim(1)), End::Commit(completion))
        .await;
    assert!(matches!(
        found(&store, &claim(1)).await.state,
        RecordState::Completed { .. }
    ));
    assert_eq!(store.sweep(10).await.unwrap(), 0);
}
