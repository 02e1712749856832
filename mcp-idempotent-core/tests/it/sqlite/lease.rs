//! Lease mode: who sees a claim, and how durable it is.

use mcp_idempotent_core::store::{LeaseEnd, Reach};

use super::*;

#[tokio::test]
async fn records_are_seen_by_the_processes_of_one_machine() {
    assert_eq!(Database::new().await.store().reach(), Reach::Machine);
}

#[tokio::test]
async fn claims_and_takeovers_reach_the_disk_although_the_pool_is_less_durable() {
    let database = Database::new().await;
    for takes_over in [false, true] {
        let options = SqliteConnectOptions::new()
            .filename(database.path())
            .synchronous(sqlx::sqlite::SqliteSynchronous::Normal);
        let store = SqliteStore::new(SqlitePoolOptions::new().connect_lazy_with(options));
        if takes_over {
            let first = state(&store, &claim(1)).await;
            let Some(RecordState::InDoubt { token, .. }) = first else {
                panic!("expected a record in doubt, found {first:?}");
            };
            let taken = store.take_over(&claim(1), token).await.unwrap();
            assert!(taken.is_some());
            // What is written next without asking for less still is as durable.
            store.sweep(1).await.unwrap();
        } else {
            let first = lease(&store, &claim(1)).await;
            database.age(first.id, claim(1).lease).await;
        }
        // In transaction mode the author's setting holds again.
        let mut transaction = begin(&store, &claim(2)).await;
        let level: i64 = sqlx::query_scalar("PRAGMA synchronous")
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        assert_eq!(level, 1);
    }
}

/// The holder of a lease that the backup does not know may still be at work.
#[tokio::test]
async fn a_restored_backup_gives_no_token_out_again() {
    let database = Database::new().await;
    let store = database.store();
    lease(&store, &claim(1)).await;
    let backup = database.path().with_extension("backup");
    sqlx::query("VACUUM INTO ?1")
        .bind(backup.to_str().unwrap())
        .execute(store.pool())
        .await
        .unwrap();
    let lost = lease(&store, &claim(2)).await;
    store.close().await;
    let restored = SqliteStore::open(&backup).await.unwrap();
    let again = lease(&restored, &claim(2)).await;
    assert!(again.token > lost.token, "{lost:?} {again:?}");
    let late = restored
        .complete(&lost, Completion::new(None, claim(1).lease))
        .await;
    assert!(matches!(late, Ok(LeaseEnd::Fenced)), "{late:?}");
}

/// Its first answer may have been lost after the commit.
#[tokio::test]
async fn a_completion_that_is_sent_again_is_done_at_the_same_time() {
    let database = Database::new().await;
    let (store, other) = (database.store(), database.store());
    let results = [completion(b"sent"), completion(b"")];
    for (key, result) in (1..).zip(results.into_iter().chain([without_result()])) {
        let held = lease(&store, &claim(key)).await;
        let Ok(LeaseEnd::Done(at)) = store.complete(&held, result.clone()).await else {
            panic!("the lease is current");
        };
        for store in [&store, &other] {
            let again = store.complete(&held, result.clone()).await;
            assert!(
                matches!(again, Ok(LeaseEnd::Done(found)) if found == at),
                "{key}: {again:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_completion_under_a_guard_that_is_sent_again_is_done_at_the_same_time() {
    let database = Database::new().await;
    let store = database.store();
    let held = lease(&store, &claim(1)).await;
    let mut result = completion(b"sent");
    result.guard = Some(lease(&store, &claim(2)).await);
    let Ok(LeaseEnd::Done(at)) = store.complete(&held, result.clone()).await else {
        panic!("both leases are current");
    };
    let again = store.complete(&held, result).await;
    assert!(
        matches!(again, Ok(LeaseEnd::Done(found)) if found == at),
        "{again:?}"
    );
}

#[tokio::test]
async fn a_second_completion_with_another_result_or_under_another_token_is_fenced() {
    let database = Database::new().await;
    let store = database.store();
    let held = lease(&store, &claim(1)).await;
    store.complete(&held, completion(b"sent")).await.unwrap();
    let another = Lease::new(held.id, held.token + 1);
    for (lease, result) in [
        (&held, completion(b"late")),
        (&held, completion(b"")),
        (&held, without_result()),
        (&another, completion(b"sent")),
    ] {
        let ended = store.complete(lease, result).await;
        assert!(matches!(ended, Ok(LeaseEnd::Fenced)), "{ended:?}");
    }
}

/// The result that it finds is another attempt's, or an operator's.
#[tokio::test]
async fn an_attempt_that_lost_its_lease_is_fenced_although_the_same_result_is_recorded() {
    let database = Database::new().await;
    let store = database.store();
    let first = lease(&store, &claim(1)).await;
    store.abandon(&first).await.unwrap();
    let ended = store.complete(&first, completion(b"sent")).await;
    assert!(matches!(ended, Ok(LeaseEnd::Fenced)), "{ended:?}");
    let second = store.take_over(&claim(1), first.token).await.unwrap();
    let second = second.expect("it was in doubt");
    store.complete(&second, completion(b"sent")).await.unwrap();
    let ended = store.complete(&first, completion(b"sent")).await;
    assert!(matches!(ended, Ok(LeaseEnd::Fenced)), "{ended:?}");
}

fn without_result() -> Completion {
    Completion::new(None, claim(1).lease)
}
