//! Every way in which a transaction can have ended, besides what the conformance suite covers.

use std::time::Duration;

use mcp_idempotent_core::{
    RecordState, Store, TransactionStore,
    store::{Claim, Claimed, End, Ended, LeaseEnd, StoreErrorKind, postgres::Isolation},
};

use super::database::{Database, begin_unclaimed, claim, lease, result, text_of};

/// Commits a record for `claim` by a transaction that took other locks, as an attempt does whose
/// locks were lost.
async fn past_the_locks(database: &Database, claim: &Claim, text: &str) {
    let elsewhere = super::database::claim("elsewhere", "{}");
    let mut transaction = database.begin(&elsewhere).await;
    database.write(&mut transaction, text).await;
    let ended = database.commit(transaction, claim, text).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
}

#[tokio::test]
async fn whoever_commits_the_record_first_decides() {
    let large = "x".repeat(100_000);
    for isolation in [
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Serializable,
    ] {
        let database = Database::with_store(|store| store.with_isolation(isolation)).await;
        for (index, end) in [
            End::Commit(result("loser")),
            End::Commit(result(&large)),
            End::RollBackAndRecord(result("loser")),
        ]
        .into_iter()
        .enumerate()
        {
            let claim = claim(&format!("key-{index}"), "{}");
            let mut loser = database.begin(&claim).await;
            database.write(&mut loser, "loser").await;
            past_the_locks(&database, &claim, "winner").await;
            match database.store.end(loser, Some(&claim), end).await {
                Ended::Lost(record) => assert_eq!(text_of(&record), "winner"),
                Ended::Aborted(error) if isolation == Isolation::Serializable => {
                    assert_eq!(error.kind(), StoreErrorKind::Conflict);
                }
                other => panic!("expected a loss, found {other:?}"),
            }
        }
        assert!(!database.effects().await.contains(&"loser".to_owned()));
    }
}

#[tokio::test]
async fn a_lease_that_got_in_is_reported_as_what_it_is() {
    let database = Database::new().await;
    let (claim, decoy) = (claim("key", "{}"), claim("decoy", "{}"));
    let transaction = database.begin(&decoy).await;
    let Ok(Claimed::New(_lease)) = database.store.claim(&claim).await else {
        panic!("the key is new");
    };
    let ended = database.commit(transaction, &claim, "loser").await;
    assert!(
        matches!(&ended, Ended::Lost(record) if matches!(record.state, RecordState::InProgress { .. })),
        "{ended:?}"
    );
}

#[tokio::test]
async fn an_error_is_not_recorded_over_a_call_that_took_the_key_meanwhile() {
    let database = Database::new().await;
    let (first, other) = (claim("key", "{}"), claim("other", "{}"));
    let transaction = database.begin(&first).await;
    // The key that is to be recorded is held by somebody else by now.
    let _running = database.begin(&other).await;
    let end = End::RollBackAndRecord(result("error"));
    let ended = database.store.end(transaction, Some(&other), end).await;
    assert!(matches!(ended, Ended::LostInProgress), "{ended:?}");
    assert_eq!(database.records().await, 0);
}

#[tokio::test]
async fn a_refusal_to_serialise_is_a_conflict_that_a_repeat_may_pass() {
    let database =
        Database::with_store(|store| store.with_isolation(Isolation::Serializable)).await;
    // Write skew: each reads what the other writes.
    let claims = [claim("one", "{}"), claim("two", "{}")];
    let mut open = Vec::new();
    for claim in &claims {
        let mut transaction = database.begin(claim).await;
        sqlx::query(database.sql("SELECT count(*) FROM {s}.effects"))
            .execute(&mut *transaction)
            .await
            .unwrap();
        database.write(&mut transaction, "effect").await;
        open.push(transaction);
    }
    let mut aborted = Vec::new();
    for (transaction, claim) in open.into_iter().zip(&claims) {
        match database.commit(transaction, claim, "result").await {
            Ended::AsAsked(_) => {}
            Ended::Aborted(error) => aborted.push((error, claim)),
            other => panic!("unexpected: {other:?}"),
        }
    }
    let [(error, claim)] = aborted.as_slice() else {
        panic!("exactly one is refused");
    };
    assert_eq!(error.kind(), StoreErrorKind::Conflict);
    let ended = database.call(claim, "effect").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.effects().await.len(), 2);
}

/// A deferred constraint refuses every commit of `effects`.
async fn refusing() -> Database {
    let database = Database::with_pool(1).await;
    database
        .execute(
            "CREATE FUNCTION {s}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             PERFORM ln(0); RETURN NULL; END $$; \
             CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON {s}.effects DEFERRABLE \
             INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {s}.refuse()",
        )
        .await;
    database
}

/// Refused with a code that statements of ours answer with, which means nothing here.
#[tokio::test]
async fn a_commit_that_the_database_refuses_is_not_committed() {
    let database = refusing().await;
    for (index, end) in [
        End::Commit(result("result")),
        End::Commit(result(&"x".repeat(100_000))),
        End::CommitUnrecorded,
    ]
    .into_iter()
    .enumerate()
    {
        let claim = claim(&format!("key-{index}"), "{}");
        let mut transaction = database.begin(&claim).await;
        database.write(&mut transaction, "undone").await;
        let ended = database.store.end(transaction, Some(&claim), end).await;
        assert!(matches!(ended, Ended::Aborted(_)), "{index}: {ended:?}");
        let again = database.begin(&claim).await;
        let end = End::CommitUnrecorded;
        let ended = database.store.end(again, None, end).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{index}: {ended:?}");
    }
    let transaction = begin_unclaimed(&database, &claim("unused", "{}"), "undone").await;
    let end = End::CommitUnrecorded;
    let ended = database.store.end(transaction, None, end).await;
    assert!(matches!(ended, Ended::Aborted(_)), "{ended:?}");
    assert!(database.effects().await.is_empty());
    assert_eq!(database.records().await, 0);
}

#[tokio::test]
async fn a_completion_whose_commit_the_database_refuses_leaves_the_lease_as_it_was() {
    let database = refusing().await;
    let claim = claim("key", "{}");
    let lease = lease(&database.store, &claim).await;
    let transaction = begin_unclaimed(&database, &claim, "undone").await;
    let end = End::Complete(lease.clone(), result("done"));
    let ended = database.store.end(transaction, None, end).await;
    assert!(matches!(ended, Ended::Aborted(_)), "{ended:?}");
    let renewed = database.store.renew(&lease, claim.lease).await;
    assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
    assert!(database.effects().await.is_empty());
}

#[tokio::test]
async fn an_unprotected_call_that_cannot_be_serialised_is_not_committed() {
    let database =
        Database::with_store(|store| store.with_isolation(Isolation::Serializable)).await;
    let mut open = Vec::new();
    for key in ["one", "two"] {
        let mut transaction = begin_unclaimed(&database, &claim(key, "{}"), key).await;
        sqlx::query(database.sql("SELECT count(*) FROM {s}.effects"))
            .execute(&mut *transaction)
            .await
            .unwrap();
        open.push(transaction);
    }
    let mut aborted = 0;
    for transaction in open {
        let end = End::CommitUnrecorded;
        match database.store.end(transaction, None, end).await {
            Ended::AsAsked(_) => {}
            Ended::Aborted(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Conflict);
                aborted += 1;
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(aborted, 1);
    assert_eq!(database.effects().await.len(), 1);
}

#[tokio::test]
async fn a_session_that_sat_idle_too_long_has_committed_nothing() {
    let idle = Duration::from_millis(500);
    let database = Database::with_store(|store| store.with_idle_timeout(idle)).await;
    for (index, end) in [
        End::Commit(result("result")),
        End::CommitUnrecorded,
        End::RollBack,
        End::RollBackAndRecord(result("error")),
    ]
    .into_iter()
    .enumerate()
    {
        let claim = claim(&format!("key-{index}"), "{}");
        let mut transaction = database.begin(&claim).await;
        let session = database.session(&mut *transaction).await;
        database.write(&mut transaction, "undone").await;
        database.until_gone(session).await;
        let commits_unrecorded = matches!(end, End::CommitUnrecorded);
        match database.store.end(transaction, Some(&claim), end).await {
            Ended::Aborted(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable),
            // Where the server's last words were not heard, there is no record to look for.
            Ended::Unknown(_) if commits_unrecorded => {}
            other => panic!("expected an abort, found {other:?}"),
        }
        assert!(database.store.look_up(&claim).await.unwrap().is_none());
    }
    assert!(database.effects().await.is_empty());
}

#[tokio::test]
async fn a_session_that_was_terminated_has_committed_nothing() {
    let database = Database::new().await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    database.write(&mut transaction, "undone").await;
    let session = database.session(&mut *transaction).await;
    database.terminate(session).await;
    let ended = database.commit(transaction, &claim, "result").await;
    assert!(
        matches!(&ended, Ended::Aborted(error) if error.is_transient()),
        "{ended:?}"
    );
    let ended = database.call(&claim, "done").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.effects().await, ["done"]);
}

#[tokio::test]
async fn dead_idle_connections_do_not_fail_a_claim() {
    let database = Database::with(
        |options| options.application_name("doomed"),
        |pool| pool.max_connections(1).test_before_acquire(false),
        |store| store,
    )
    .await;
    database.call(&claim("first", "{}"), "first").await;
    let session = database.session(&database.pool).await;
    database.terminate(session).await;
    let ended = database.call(&claim("second", "{}"), "second").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
}

#[tokio::test]
async fn results_around_the_inline_limit_come_back_byte_for_byte() {
    use mcp_idempotent_core::{
        Bytes,
        store::{Completion, postgres::PostgresStore},
    };
    let database = Database::with_pool(1).await;
    let limit = PostgresStore::INLINE_RESULT_BYTES;
    for size in [0, 1, limit - 1, limit, limit + 1, 1 << 20] {
        let claim = claim(&format!("key-{size}"), "{}");
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(size).collect();
        let bytes = Bytes::from(bytes);
        let transaction = database.begin(&claim).await;
        let completion = Completion::new(Some(bytes.clone()), Duration::from_secs(60));
        let end = End::Commit(completion);
        let ended = database.store.end(transaction, Some(&claim), end).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
        let record = database.store.look_up(&claim).await.unwrap().unwrap();
        let RecordState::Completed { response, .. } = record.state else {
            panic!("expected a completed record");
        };
        assert!(response == Some(bytes), "the bytes of {size} differ");
    }
}

#[tokio::test]
async fn large_results_of_different_keys_do_not_refuse_each_other() {
    let database =
        Database::with_store(|store| store.with_isolation(Isolation::Serializable)).await;
    let large = "x".repeat(100_000);
    let claims: Vec<_> = (0..6).map(|n| claim(&format!("key-{n}"), "{}")).collect();
    let mut open = Vec::new();
    for claim in &claims {
        let mut transaction = database.begin(claim).await;
        database.write(&mut transaction, "effect").await;
        open.push(transaction);
    }
    for (transaction, claim) in open.into_iter().zip(&claims) {
        let ended = database.commit(transaction, claim, &large).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    }
    assert_eq!(database.effects().await.len(), claims.len());
}

#[tokio::test]
async fn a_unique_key_of_another_table_is_not_taken_for_a_record_that_won() {
    let database = Database::new().await;
    // Somebody's trigger on our table, whose own table has a primary key of the same name.
    database
        .execute(
            "CREATE SCHEMA {s}_audit; CREATE TABLE {s}_audit.records \
             (one int CONSTRAINT mcp_idempotent_records_pkey PRIMARY KEY); \
             CREATE FUNCTION {s}_audit.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO {s}_audit.records VALUES (1); RETURN NULL; END $$; \
             CREATE TRIGGER note AFTER INSERT ON {s}.records \
             FOR EACH ROW EXECUTE FUNCTION {s}_audit.note()",
        )
        .await;
    let ended = database.call(&claim("one", "{}"), "one").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    let ended = database.call(&claim("two", "{}"), "two").await;
    let Ended::Aborted(error) = ended else {
        panic!("{ended:?}")
    };
    assert!(!error.is_transient(), "{error}");
    assert_eq!(database.effects().await, ["one"]);
    database.execute("DROP SCHEMA {s}_audit CASCADE").await;
}
