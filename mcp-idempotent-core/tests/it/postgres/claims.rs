//! How a claim of transaction mode is answered.

use std::time::Duration;

use mcp_idempotent_core::{
    Store, TransactionStore,
    store::{Claimed, End, Ended},
};

use super::database::{Database, begin, claim, other_arguments, result, text_of};

#[tokio::test]
async fn the_same_call_elsewhere_is_in_progress_and_another_one_is_a_conflict() {
    for lookup_first in [false, true] {
        let database = Database::with_store(|store| store.with_lookup_first(lookup_first)).await;
        let elsewhere = database.another_process(|store| store);
        let claim = claim("key", "{}");
        let running = database.begin(&claim).await;
        let other = other_arguments(&claim);
        for _ in 0..2 {
            let same = elsewhere.begin(&claim.call, Some(&claim)).await;
            assert!(matches!(same, Ok(Claimed::InProgress)), "{same:?}");
            let conflict = elsewhere.begin(&other.call, Some(&other)).await;
            assert!(matches!(conflict, Ok(Claimed::Conflict)), "{conflict:?}");
            let same = elsewhere.claim(&claim).await;
            assert!(matches!(same, Ok(Claimed::InProgress)), "{same:?}");
            let conflict = elsewhere.claim(&other).await;
            assert!(matches!(conflict, Ok(Claimed::Conflict)), "{conflict:?}");
        }
        let ended = database.commit(running, &claim, "result").await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
        for asked in [&claim, &other] {
            match elsewhere.begin(&asked.call, Some(asked)).await {
                Ok(Claimed::Found(record)) => {
                    assert_eq!(record.fingerprint, claim.fingerprint);
                    assert_eq!(text_of(&record), "result");
                }
                other => panic!("expected the record, found {other:?}"),
            }
        }
    }
}

/// Two attempts on one expired record, both past the locks (as if these had failed): the second
/// to commit loses, with a record, and not silently.
#[tokio::test]
async fn racers_past_the_locks_have_one_effect_on_an_expired_record() {
    let database = Database::new().await;
    let first = claim("key", "{}");
    database.call(&first, "expired").await;
    database.age(first.id, Duration::from_secs(120)).await;
    let mut one = database.begin(&first).await;
    let elsewhere = claim("elsewhere", "{}");
    let mut two = database.begin(&elsewhere).await;
    database.write(&mut one, "one").await;
    database.write(&mut two, "two").await;
    let ended = database.commit(one, &first, "one").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    let ended = database.commit(two, &first, "two").await;
    let Ended::Lost(record) = ended else {
        panic!("expected a loss, found {ended:?}");
    };
    assert_eq!(text_of(&record), "one");
    assert_eq!(database.effects().await, ["expired", "one"]);
}

/// Expiry counts from the finishing statement, not from the start of the transaction.
#[tokio::test]
async fn a_record_does_not_expire_by_the_time_that_its_handler_took() {
    let database = Database::new().await;
    let claim = claim("key", "{}");
    let transaction = database.begin(&claim).await;
    database
        .until(
            "SELECT clock_timestamp() > xact_start + interval '120 ms' FROM pg_stat_activity \
            WHERE query LIKE '%{s}%' OR query LIKE '%_seen(%' ORDER BY xact_start LIMIT 1",
        )
        .await;
    let before_the_end: String = sqlx::query_scalar("SELECT clock_timestamp()::text")
        .fetch_one(&database.outside)
        .await
        .unwrap();
    let mut completion = result("result");
    completion.retention = Duration::from_secs(60);
    let end = End::Commit(completion);
    database.store.end(transaction, Some(&claim), end).await;
    let counted: bool = sqlx::query_scalar(database.sql(
        "SELECT expires_at - completed_at = interval '60 s' AND completed_at >= $1::timestamptz \
         FROM {s}.records",
    ))
    .bind(before_the_end)
    .fetch_one(&database.outside)
    .await
    .unwrap();
    assert!(counted);
}

#[tokio::test]
async fn neither_key_nor_arguments_are_stored() {
    let database = Database::new().await;
    let mut claim = claim("a-very-secret-key", r#"{"card":"4242424242424242"}"#);
    claim.call.tool = "o'brien\\ $1 é\u{0}".into();
    let ended = database.call(&claim, "result").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    let row: String = sqlx::query_scalar(database.sql("SELECT records::text FROM {s}.records"))
        .fetch_one(&database.outside)
        .await
        .unwrap();
    assert!(
        row.contains("a-very-s") && row.contains("o?brien? ?1 ??"),
        "{row}"
    );
    for secret in ["a-very-secret", "4242424242424242"] {
        assert!(!row.contains(secret), "{row}");
    }
}

#[tokio::test]
async fn sixty_four_duplicates_hold_one_connection() {
    let database = Database::with_pool(4).await;
    let claim = claim("slow", "{}");
    let running = database.begin(&claim).await;
    let duplicates = (0..64).map(|_| {
        let (store, claim) = (database.store.clone(), claim.clone());
        tokio::spawn(async move { store.begin(&claim.call, Some(&claim)).await })
    });
    for duplicate in duplicates.collect::<Vec<_>>() {
        let answer = duplicate.await.unwrap();
        assert!(matches!(answer, Ok(Claimed::InProgress)), "{answer:?}");
    }
    let other = super::database::claim("other", "{}");
    drop(begin(&database.store, &other).await);
    let ended = database.commit(running, &claim, "result").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
}

/// A transaction that ends releases its locks one after the other. A caller who obeys a conflict makes a
/// new key, and acts twice.
#[tokio::test]
async fn an_attempt_that_is_just_ending_is_in_progress_and_no_conflict() {
    let database = Database::new().await;
    let claim = claim("key", "{}");
    let mut running = database.begin(&claim).await;
    let session = database.session(&mut *running).await;
    let lock: i64 = sqlx::query_scalar(
        "SELECT classid::bigint << 32 | objid::bigint FROM pg_locks \
         WHERE pid = $1 AND locktype = 'advisory' AND objsubid = 1",
    )
    .bind(session)
    .fetch_one(&database.outside)
    .await
    .unwrap();
    drop(running);
    database.until_gone(session).await;
    let mut ending = database.outside.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(lock)
        .execute(&mut *ending)
        .await
        .unwrap();
    let begun = database.store.begin(&claim.call, Some(&claim)).await;
    assert!(matches!(begun, Ok(Claimed::InProgress)), "{begun:?}");
    let claimed = database.store.claim(&claim).await;
    assert!(matches!(claimed, Ok(Claimed::InProgress)), "{claimed:?}");
    ending.rollback().await.unwrap();
    drop(database.begin(&claim).await);
}

/// A look-up before the lock would miss the record of an attempt that commits in between, and its handler
/// would run in vain.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn racers_for_a_key_that_commits_run_one_handler() {
    const RACERS: usize = 4;
    let database = std::sync::Arc::new(Database::with_pool(8).await);
    for round in 0..150 {
        let racers = (0..RACERS).map(|_| {
            let database = std::sync::Arc::clone(&database);
            tokio::spawn(async move {
                let claim = claim(&format!("key-{round}"), "{}");
                let mut runs = 0;
                loop {
                    match database
                        .store
                        .begin(&claim.call, Some(&claim))
                        .await
                        .unwrap()
                    {
                        Claimed::New(transaction) => {
                            runs += 1;
                            database.commit(transaction, &claim, "result").await;
                        }
                        Claimed::InProgress => {}
                        Claimed::Found(_) => return runs,
                        Claimed::Conflict => panic!("equal calls do not conflict"),
                    }
                }
            })
        });
        let mut runs = 0;
        for racer in racers.collect::<Vec<_>>() {
            runs += racer.await.unwrap();
        }
        assert_eq!(runs, 1, "in round {round}");
    }
}
