//! The connection ends at the commit, and the answer with it.

use std::time::Duration;

use mcp_idempotent_core::{
    CommitOutcome, RecordState, Store, TransactionStore,
    store::{Claimed, End, Ended, LeaseEnd},
};

use super::{
    database::{Database, claim, lease, result, text_of},
    proxy::{Cut, Proxy, proxied},
};

async fn through_a_proxy(recovery: Duration) -> (Proxy, Database) {
    proxied(1, |store| store.with_recovery_timeout(recovery)).await
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_lost_answer_to_a_commit_that_happened_is_a_commit() {
    let (proxy, database) = through_a_proxy(LONG).await;
    for size in [10, 100_000] {
        let claim = claim(&format!("lost-{size}"), "{}");
        let mut transaction = database.begin(&claim).await;
        database.write(&mut transaction, "once").await;
        proxy.cut_next_commit(Cut::AfterTheServer);
        let ended = database
            .commit(transaction, &claim, &"x".repeat(size))
            .await;
        assert!(proxy.has_cut());
        let Ended::AsAsked(at) = ended else {
            panic!("expected a commit, found {ended:?}");
        };
        let record = database.store.look_up(&claim).await.unwrap().unwrap();
        assert!(
            matches!(record.state, RecordState::Completed { at: recorded, .. } if recorded == at)
        );
    }
    assert_eq!(database.effects().await, ["once", "once"]);
}

#[tokio::test]
async fn a_commit_that_never_reached_the_server_is_not_committed() {
    let (proxy, database) = through_a_proxy(LONG).await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    database.write(&mut transaction, "never").await;
    proxy.cut_next_commit(Cut::BeforeTheServer);
    let ended = database.commit(transaction, &claim, "result").await;
    assert!(proxy.has_cut());
    let Ended::Aborted(error) = ended else {
        panic!("expected an abort, found {ended:?}");
    };
    assert!(error.is_transient(), "{error:?}");
    assert_eq!(error.outcome(), CommitOutcome::NotCommitted);
    assert!(database.effects().await.is_empty());
    // The key is free.
    let ended = database.call(&claim, "again").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.effects().await, ["again"]);
}

#[tokio::test]
async fn while_the_lost_session_holds_the_lock_the_outcome_is_unknown() {
    let (proxy, database) = through_a_proxy(Duration::from_millis(300)).await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    database.write(&mut transaction, "perhaps").await;
    proxy.cut_next_commit(Cut::OnTheClientsSideOnly);
    let ended = database.commit(transaction, &claim, "result").await;
    assert!(proxy.has_cut());
    let Ended::Unknown(error) = ended else {
        panic!("expected an unknown outcome, found {ended:?}");
    };
    assert_eq!(error.outcome(), CommitOutcome::Unknown);
    // Until that session ends, a retry is told that the call is in progress.
    let again = database.store.begin(&claim.call, Some(&claim)).await;
    assert!(matches!(again, Ok(Claimed::InProgress)), "{again:?}");
}

#[tokio::test]
async fn a_record_of_another_call_found_after_a_lost_commit_has_won() {
    let (proxy, database) = through_a_proxy(LONG).await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    database.write(&mut transaction, "loser").await;
    // As if another server had got past the lock.
    database
        .execute(&format!(
            "INSERT INTO {{s}}.records (id, fingerprint, state, token, labels, response, \
             completed_at, expires_at) SELECT '\\x{}', '\\x{}', 1, -1, \
             'tool', 'winner', now(), now() + interval '1 hour'",
            hex(claim.id.as_bytes()),
            hex(&claim.fingerprint.to_stored()),
        ))
        .await;
    proxy.cut_next_commit(Cut::BeforeTheServer);
    let ended = database.commit(transaction, &claim, "loser").await;
    let Ended::Lost(record) = ended else {
        panic!("expected a loss, found {ended:?}");
    };
    assert_eq!(text_of(&record), "winner");
    assert!(database.effects().await.is_empty());
}

#[tokio::test]
async fn a_lost_answer_to_a_recorded_error_is_found_out_too() {
    for (cut, recorded) in [(Cut::AfterTheServer, true), (Cut::BeforeTheServer, false)] {
        let (proxy, database) = through_a_proxy(LONG).await;
        let claim = claim("key", "{}");
        let mut transaction = database.begin(&claim).await;
        database.write(&mut transaction, "undone").await;
        proxy.cut_next_commit(cut);
        let end = End::RollBackAndRecord(result("error"));
        let ended = database.store.end(transaction, Some(&claim), end).await;
        assert!(proxy.has_cut());
        assert_eq!(matches!(ended, Ended::AsAsked(_)), recorded, "{ended:?}");
        assert_eq!(matches!(ended, Ended::Aborted(_)), !recorded, "{ended:?}");
        assert_eq!(database.records().await, i64::from(recorded));
        assert!(database.effects().await.is_empty());
    }
}

#[tokio::test]
async fn without_a_record_a_lost_answer_to_a_commit_stays_unknown() {
    let (proxy, database) = through_a_proxy(LONG).await;
    let call = claim("unused", "{}").call;
    let Ok(Claimed::New(mut transaction)) = database.store.begin(&call, None).await else {
        panic!("an unprotected call always begins");
    };
    database.write(&mut transaction, "once").await;
    proxy.cut_next_commit(Cut::AfterTheServer);
    let end = End::CommitUnrecorded;
    let ended = database.store.end(transaction, None, end).await;
    assert!(matches!(ended, Ended::Unknown(_)), "{ended:?}");
    assert_eq!(database.effects().await, ["once"]);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_lost_answer_to_a_completion_is_asked_for_again() {
    for cut in [Cut::AfterTheServer, Cut::BeforeTheServer] {
        let (proxy, database) = through_a_proxy(LONG).await;
        let Ok(Claimed::New(lease)) = database.store.claim(&claim("key", "{}")).await else {
            panic!("the key is new");
        };
        proxy.cut_next_commit(cut);
        let end = database.store.complete(&lease, result("done")).await;
        assert!(proxy.has_cut());
        assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{cut:?}: {end:?}");
        let again = database.store.complete(&lease, result("again")).await;
        assert!(matches!(again, Ok(LeaseEnd::Fenced)), "{again:?}");
        let record = database.store.look_up(&claim("key", "{}")).await.unwrap();
        assert_eq!(text_of(&record.unwrap()), "done");
    }
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_found_again_and_runs_once() {
    for cut in [Cut::AfterTheServer, Cut::BeforeTheServer] {
        let (proxy, database) = through_a_proxy(LONG).await;
        database.store.claim(&claim("warm", "{}")).await.unwrap();
        proxy.cut_next_commit(cut);
        let lease = lease(&database.store, &claim("key", "{}")).await;
        assert!(proxy.has_cut());
        let again = database.store.claim(&claim("key", "{}")).await;
        assert!(matches!(again, Ok(Claimed::Found(_))), "{again:?}");
        let end = database.store.complete(&lease, result("done")).await;
        assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{cut:?}: {end:?}");
    }
}

/// A record in progress that nobody runs would be in doubt when its lease ends.
#[tokio::test]
async fn a_claim_whose_answer_was_lost_for_good_is_given_back() {
    for takes_over in [false, true] {
        let (proxy, database) = proxied(1, |store| {
            store.with_acquire_timeout(Duration::from_millis(200))
        })
        .await;
        let claim = claim("key", "{}");
        let before = lease(&database.store, &claim).await;
        database.store.abandon(&before).await.unwrap();
        if !takes_over {
            database.execute("DELETE FROM {s}.records").await;
        }
        // The open connection commits, and there is no other to ask.
        proxy.refuse();
        proxy.cut_next_commit(Cut::AfterTheServer);
        let failed = if takes_over {
            let taken = database.store.take_over(&claim, before.token).await;
            taken.map(drop).err()
        } else {
            database.store.claim(&claim).await.map(drop).err()
        };
        assert!(failed.expect("the database is away").is_transient());
        assert_eq!(database.records().await, 1);
        proxy.come_up();
        let state = if takes_over { 2 } else { 4 };
        let given_back = format!("SELECT state = {state} FROM {{s}}.records");
        database.until(&given_back).await;
        let claimed = database.store.claim(&claim).await.unwrap();
        match claimed {
            Claimed::New(lease) => assert_eq!((takes_over, lease.attempts), (false, 1)),
            Claimed::Found(record) => {
                assert!(takes_over, "{record:?}");
                assert!(matches!(record.state, RecordState::InDoubt { .. }));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_completion_that_is_repeated_finds_its_own_record() {
    let database = Database::new().await;
    let lease = lease(&database.store, &claim("key", "{}")).await;
    let first = database.store.complete(&lease, result("done")).await;
    let again = database.store.complete(&lease, result("done")).await;
    assert_eq!(first.unwrap(), again.unwrap());
    let other = database.store.complete(&lease, result("other")).await;
    assert!(matches!(other, Ok(LeaseEnd::Fenced)), "{other:?}");
}
