//! A lease that is completed together with a transaction, besides what the conformance suite covers.

use std::time::Duration;

use mcp_idempotent_core::{
    RecordState, Store, TransactionStore,
    store::{Claim, Claimed, End, Ended, Lease, LeaseEnd, StoreErrorKind, postgres::Isolation},
};
use sqlx::{Executor, Postgres, Transaction};

use super::{
    database::{Database, begin_unclaimed, claim, lease, result, text_of, unique},
    proxy::{Cut, Proxy, proxied},
};

const LONG: Duration = Duration::from_secs(60);

async fn through_a_proxy(recovery: Duration) -> (Proxy, Database) {
    proxied(2, |store| store.with_recovery_timeout(recovery)).await
}

/// Completes `lease` in a transaction with one effect.
async fn complete(database: &Database, claim: &Claim, lease: &Lease, text: &str) -> Ended {
    let transaction = begin_unclaimed(database, claim, text).await;
    let end = End::Complete(lease.clone(), result(text));
    database.store.end(transaction, None, end).await
}

async fn is_current(database: &Database, lease: &Lease) {
    let renewed = database.store.renew(lease, LONG).await;
    assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
}

#[tokio::test]
async fn a_lost_answer_to_a_commit_that_completed_a_lease_is_found_out() {
    let (proxy, database) = through_a_proxy(LONG).await;
    for (key, size) in [("small", 10), ("large", 100_000)] {
        let claim = claim(key, "{}");
        let lease = lease(&database.store, &claim).await;
        let transaction = begin_unclaimed(&database, &claim, key).await;
        proxy.cut_next_commit(Cut::AfterTheServer);
        let end = End::Complete(lease, result(&"x".repeat(size)));
        let ended = database.store.end(transaction, None, end).await;
        assert!(proxy.has_cut());
        let Ended::AsAsked(at) = ended else {
            panic!("expected a commit, found {ended:?}");
        };
        let record = database.store.look_up(&claim).await.unwrap().unwrap();
        assert!(
            matches!(record.state, RecordState::Completed { at: recorded, .. } if recorded == at)
        );
        assert_eq!(text_of(&record).len(), size);
    }
    assert_eq!(database.effects().await, ["large", "small"]);
}

#[tokio::test]
async fn a_completion_that_never_reached_the_server_leaves_the_lease_as_it_was() {
    let (proxy, database) = through_a_proxy(LONG).await;
    let claim = claim("key", "{}");
    let lease = lease(&database.store, &claim).await;
    proxy.cut_next_commit(Cut::BeforeTheServer);
    // The claim's own transaction is over, so the next commit is the completion's.
    let ended = complete(&database, &claim, &lease, "never").await;
    assert!(proxy.has_cut());
    assert!(matches!(ended, Ended::Aborted(_)), "{ended:?}");
    assert!(database.effects().await.is_empty());
    is_current(&database, &lease).await;
    let ended = complete(&database, &claim, &lease, "once").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.effects().await, ["once"]);
}

#[tokio::test]
async fn while_the_lost_session_lives_the_outcome_of_a_completion_is_unknown() {
    let (proxy, database) = through_a_proxy(Duration::from_millis(300)).await;
    let claim = claim("key", "{}");
    let lease = lease(&database.store, &claim).await;
    proxy.cut_next_commit(Cut::OnTheClientsSideOnly);
    let ended = complete(&database, &claim, &lease, "perhaps").await;
    assert!(proxy.has_cut());
    assert!(matches!(ended, Ended::Unknown(_)), "{ended:?}");
}

/// One of those whose commit the gate holds up.
const A_COMMIT_WAITS: &str = "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' \
     AND NOT granted AND mode = 'ShareLock' AND objid = hashtext('{s}')::oid";

/// A change of a row after this commits when the transaction that is returned has ended, and not before.
async fn commits_wait(database: &Database, what: &str) -> Transaction<'static, Postgres> {
    database
        .execute(&format!(
            "CREATE FUNCTION {{s}}.wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             PERFORM pg_advisory_xact_lock_shared(hashtext('{{s}}')); RETURN NULL; END $$; \
             CREATE CONSTRAINT TRIGGER wait AFTER {what} DEFERRABLE \
             INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {{s}}.wait()"
        ))
        .await;
    let mut gate = database.outside.begin().await.unwrap();
    gate.execute(sqlx::raw_sql(
        database.sql("SELECT pg_advisory_xact_lock(hashtext('{s}'))"),
    ))
    .await
    .unwrap();
    gate
}

/// As behind a standby that is slow to confirm: the commit is under way, and not visible yet.
#[tokio::test]
async fn a_commit_that_takes_its_time_is_waited_for() {
    let (proxy, database) = through_a_proxy(LONG).await;
    let gate = commits_wait(&database, "INSERT ON {s}.effects").await;
    let claim = claim("key", "{}");
    let lease = lease(&database.store, &claim).await;
    proxy.cut_next_commit(Cut::WhileTheServerWorks);
    let (ended, ()) = tokio::join!(complete(&database, &claim, &lease, "once"), async {
        proxy.until_cut().await;
        // The record still says that the call is in progress; its lease lapses meanwhile, and
        // nobody gets past the commit.
        database.until(A_COMMIT_WAITS).await;
        let record = database.store.look_up(&claim).await.unwrap().unwrap();
        assert!(matches!(record.state, RecordState::InProgress { .. }));
        gate.rollback().await.unwrap();
    });
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.effects().await, ["once"]);
}

/// As on a disk that stalls: the result was written before the lease ended, and its commit takes
/// longer.
#[tokio::test]
async fn a_completion_whose_commit_outlasts_the_lease_is_in_progress_and_never_in_doubt() {
    let database = Database::new().await;
    let gate = commits_wait(&database, "UPDATE ON {s}.records").await;
    let mut claim = claim("key", "{}");
    claim.lease = Duration::from_secs(2);
    let lease = lease(&database.store, &claim).await;
    let (ended, ()) = tokio::join!(database.store.complete(&lease, result("late")), async {
        database.until(A_COMMIT_WAITS).await;
        let lapsed = "SELECT lease_until <= clock_timestamp() FROM {s}.records";
        database.until(lapsed).await;
        for other in [
            database.another_process(|store| store),
            database.another_process(|store| store.with_prepared_statements(false)),
        ] {
            let record = other.look_up(&claim).await.unwrap().unwrap();
            let is_in_progress = |state| matches!(state, RecordState::InProgress { .. });
            assert!(is_in_progress(record.state), "{:?}", record.fingerprint);
            match other.claim(&claim).await.unwrap() {
                Claimed::Found(record) => assert!(is_in_progress(record.state)),
                claimed => assert!(matches!(claimed, Claimed::InProgress), "{claimed:?}"),
            }
        }
        gate.rollback().await.unwrap();
    });
    assert!(matches!(ended, Ok(LeaseEnd::Done(_))), "{ended:?}");
    let record = database.store.look_up(&claim).await.unwrap().unwrap();
    assert_eq!(text_of(&record), "late");
}

/// Its own process asks again, because its first answer was late.
#[tokio::test]
async fn a_completion_that_is_still_being_committed_is_not_called_fenced() {
    let database = Database::new().await;
    let gate = commits_wait(&database, "UPDATE ON {s}.records").await;
    let mut claim = claim("key", "{}");
    claim.lease = Duration::from_secs(2);
    let lease = lease(&database.store, &claim).await;
    let again = database.another_process(|store| store);
    let (ended, ()) = tokio::join!(database.store.complete(&lease, result("late")), async {
        database.until(A_COMMIT_WAITS).await;
        let lapsed = "SELECT lease_until <= clock_timestamp() FROM {s}.records";
        database.until(lapsed).await;
        let ended = again.complete(&lease, result("late")).await;
        let error = ended.expect_err("nobody can know yet");
        assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}");
        assert!(error.is_transient(), "{error}");
        gate.rollback().await.unwrap();
    });
    assert!(matches!(ended, Ok(LeaseEnd::Done(_))), "{ended:?}");
    let ended = again.complete(&lease, result("late")).await;
    assert!(matches!(ended, Ok(LeaseEnd::Done(_))), "{ended:?}");
    let ended = again.complete(&lease, result("other")).await;
    assert!(matches!(ended, Ok(LeaseEnd::Fenced)), "{ended:?}");
}

/// `change` is made by somebody who holds the record while the completion comes.
async fn waits_for_a_holder(lease_period: Duration, change: &str, until: &str) {
    let name = unique("waits");
    let database = Database::with_options(|options| options.application_name(&name)).await;
    let mut claim = claim("key", "{}");
    claim.lease = lease_period;
    let lease = lease(&database.store, &claim).await;
    let transaction = begin_unclaimed(&database, &claim, "late").await;
    let mut holder = database.outside.begin().await.unwrap();
    holder
        .execute(sqlx::raw_sql(database.sql(change)))
        .await
        .unwrap();
    let end = End::Complete(lease, result("late"));
    let (ended, ()) = tokio::join!(database.store.end(transaction, None, end), async {
        database
            .until(&format!(
                "SELECT count(*) = 1 FROM pg_stat_activity \
                 WHERE application_name = '{name}' AND wait_event_type = 'Lock'"
            ))
            .await;
        database.until(until).await;
        holder.commit().await.unwrap();
    });
    assert!(matches!(ended, Ended::Fenced), "{ended:?}");
    assert!(database.effects().await.is_empty());
    let record = database.store.look_up(&claim).await.unwrap().unwrap();
    assert!(matches!(record.state, RecordState::InDoubt { .. }));
}

#[tokio::test]
async fn a_lease_that_is_seen_to_have_lapsed_after_a_wait_is_fenced() {
    waits_for_a_holder(
        LONG,
        "UPDATE {s}.records SET lease_until = lease_until - interval '1 hour'",
        "SELECT true",
    )
    .await;
}

/// The row is as it was before the wait, so Postgres does not look at the guard again.
#[tokio::test]
async fn a_lease_that_lapses_while_its_completion_waits_is_fenced() {
    waits_for_a_holder(
        Duration::from_secs(2),
        "SELECT 1 FROM {s}.records FOR UPDATE",
        "SELECT lease_until <= clock_timestamp() FROM {s}.records",
    )
    .await;
}

#[tokio::test]
async fn a_server_that_was_paused_past_the_lease_commits_nothing() {
    let (proxy, database) = through_a_proxy(LONG).await;
    let claim = claim("key", "{}");
    let lease = lease(&database.store, &claim).await;
    proxy.cut_next_commit(Cut::Hold);
    let (ended, ()) = tokio::join!(complete(&database, &claim, &lease, "late"), async {
        proxy.until_cut().await;
        database.age(claim.id, 2 * claim.lease).await;
        proxy.let_go();
    });
    assert!(matches!(ended, Ended::Fenced), "{ended:?}");
    assert!(database.effects().await.is_empty());
}

#[tokio::test]
async fn a_renewal_within_the_transaction_aborts_it_above_read_committed_only() {
    for (isolation, commits) in [
        (Isolation::ReadCommitted, true),
        (Isolation::RepeatableRead, false),
        (Isolation::Serializable, false),
    ] {
        let database = Database::with_store(|store| store.with_isolation(isolation)).await;
        let claim = claim("key", "{}");
        let lease = lease(&database.store, &claim).await;
        let transaction = begin_unclaimed(&database, &claim, "once").await;
        is_current(&database, &lease).await;
        let end = End::Complete(lease.clone(), result("done"));
        let ended = database.store.end(transaction, None, end).await;
        if commits {
            assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
            continue;
        }
        assert!(
            matches!(&ended, Ended::Aborted(error) if error.kind() == StoreErrorKind::Conflict),
            "{ended:?}"
        );
        assert!(database.effects().await.is_empty());
        let ended = complete(&database, &claim, &lease, "once").await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    }
}
