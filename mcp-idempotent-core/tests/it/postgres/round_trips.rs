//! What a call costs on the wire, counted.

use std::time::Duration;

use mcp_idempotent_core::{
    Store, TransactionStore,
    store::{
        Claimed, End, Ended, LeaseEnd,
        postgres::{PostgresStore, PostgresStoreBuilder},
    },
};

use super::{
    database::{Database, claim, lease, result},
    proxy::Proxy,
};

async fn counted(
    store: impl FnOnce(PostgresStoreBuilder) -> PostgresStoreBuilder,
) -> (Proxy, Database) {
    let proxy = Proxy::start(&super::database::options());
    let database = Database::with(
        |options| proxy.options(options),
        |pool| pool.max_connections(1).test_before_acquire(false),
        store,
    )
    .await;
    // Connected, prepared, and the effect's INSERT known to sqlx.
    let warm = database.call(&claim("warm", "{}"), "warm").await;
    assert!(matches!(warm, Ended::AsAsked(_)), "{warm:?}");
    returned(&database).await;
    (proxy, database)
}

/// Waits until the pool has its connection back, and with it everything that rides on the return.
async fn returned(database: &Database) {
    for _ in 0..2000 {
        if database.pool.num_idle() == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the connection did not come back");
}

async fn bare(proxy: &Proxy, database: &Database) -> usize {
    let before = proxy.turns();
    let mut transaction = database.pool.begin().await.unwrap();
    database.write(&mut transaction, "bare").await;
    transaction.commit().await.unwrap();
    returned(database).await;
    proxy.turns() - before
}

#[tokio::test]
async fn a_first_call_adds_no_round_trip_to_the_bare_transaction() {
    let (proxy, database) = counted(|store| store).await;
    let bare = bare(&proxy, &database).await;
    let before = proxy.turns();
    let ended = database.call(&claim("first", "{}"), "first").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    returned(&database).await;
    assert_eq!(proxy.turns() - before, bare);
}

#[tokio::test]
async fn a_large_result_adds_two_round_trips() {
    let (proxy, database) = counted(|store| store).await;
    let large = "x".repeat(100_000);
    let bare = bare(&proxy, &database).await;
    let before = proxy.turns();
    let ended = database.call(&claim("large", "{}"), &large).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    returned(&database).await;
    assert_eq!(proxy.turns() - before, bare + 2);
}

#[tokio::test]
async fn an_unprotected_call_adds_no_round_trip() {
    let (proxy, database) = counted(|store| store).await;
    let bare = bare(&proxy, &database).await;
    let before = proxy.turns();
    let call = claim("unused", "{}").call;
    let Ok(Claimed::New(mut transaction)) = database.store.begin(&call, None).await else {
        panic!("an unprotected call always begins");
    };
    database.write(&mut transaction, "unprotected").await;
    let ended = database
        .store
        .end(transaction, None, End::CommitUnrecorded)
        .await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    returned(&database).await;
    assert_eq!(proxy.turns() - before, bare);
}

#[tokio::test]
async fn a_recorded_error_takes_as_many_round_trips_as_a_commit() {
    let (proxy, database) = counted(|store| store).await;
    let bare = bare(&proxy, &database).await;
    let before = proxy.turns();
    let claim = claim("fails", "{}");
    let mut transaction = database.begin(&claim).await;
    database.write(&mut transaction, "undone").await;
    let ended = database
        .store
        .end(
            transaction,
            Some(&claim),
            End::RollBackAndRecord(result("no")),
        )
        .await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    returned(&database).await;
    assert_eq!(proxy.turns() - before, bare);
}

/// The last turn of each is the ping with which the pool takes the connection back.
#[tokio::test]
async fn a_replay_takes_one_round_trip_where_the_call_was_answered_and_two_elsewhere_at_first() {
    for leased in [false, true] {
        let (proxy, database) = counted(|store| store).await;
        // It has seen no call, as in another process.
        let another = PostgresStore::builder(database.pool.clone()).with_schema(&database.schema);
        let another = another.build().unwrap();
        let claim = claim("replayed", "{}");
        if leased {
            let lease = lease(&database.store, &claim).await;
            let completed = database.store.complete(&lease, result("once")).await;
            assert!(matches!(completed, Ok(LeaseEnd::Done(_))), "{completed:?}");
        } else {
            database.call(&claim, "once").await;
        }
        for (store, expected) in [(&database.store, 1), (&another, 2), (&another, 1)] {
            returned(&database).await;
            let before = proxy.turns();
            if leased {
                let found = store.claim(&claim).await;
                assert!(matches!(found, Ok(Claimed::Found(_))), "{found:?}");
            } else {
                let found = store.begin(&claim.call, Some(&claim)).await;
                assert!(matches!(found, Ok(Claimed::Found(_))), "{found:?}");
            }
            returned(&database).await;
            assert_eq!(proxy.turns() - before, expected + 1, "leased: {leased}");
        }
    }
}

#[tokio::test]
async fn a_key_that_was_seen_completed_is_free_again_once_its_record_has_expired() {
    let database = Database::new().await;
    let claim = claim("again", "{}");
    for call in ["first", "second"] {
        database.call(&claim, call).await;
        database
            .age(claim.id, Duration::from_secs(30 * 24 * 3600))
            .await;
    }
    let lease = lease(&database.store, &claim).await;
    let completed = database.store.complete(&lease, result("third")).await;
    assert!(matches!(completed, Ok(LeaseEnd::Done(_))), "{completed:?}");
}

#[tokio::test]
async fn looking_up_first_takes_one_round_trip_for_what_another_process_answered() {
    let (proxy, database) = counted(|store| store.with_lookup_first(true)).await;
    let claim = claim("replayed", "{}");
    database.call_elsewhere(&claim, "once").await;
    let before = proxy.turns();
    let found = database.store.begin(&claim.call, Some(&claim)).await;
    assert!(matches!(found, Ok(Claimed::Found(_))), "{found:?}");
    returned(&database).await;
    assert_eq!(proxy.turns() - before, 1 + 1);
}

#[tokio::test]
async fn looking_up_first_takes_one_round_trip_also_where_sqlx_keeps_no_statements() {
    let proxy = Proxy::start(&super::database::options());
    let database = Database::with(
        |options| proxy.options(options).statement_cache_capacity(0),
        |pool| pool.max_connections(1).test_before_acquire(false),
        |store| store.with_lookup_first(true),
    )
    .await;
    database.call(&claim("warm", "{}"), "warm").await;
    let claim = claim("replayed", "{}");
    database.call_elsewhere(&claim, "once").await;
    returned(&database).await;
    let before = proxy.turns();
    let found = database.store.begin(&claim.call, Some(&claim)).await;
    assert!(matches!(found, Ok(Claimed::Found(_))), "{found:?}");
    returned(&database).await;
    assert_eq!(proxy.turns() - before, 1 + 1);
}
