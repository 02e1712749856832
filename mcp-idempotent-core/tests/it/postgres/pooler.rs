//! A pooler that answers a commit with an error of its own.

use std::time::Duration;

use mcp_idempotent_core::{
    Audit, OperatorStore, RecordState, Resolution, Resolved, Store, TransactionStore,
    store::{Claim, Claimed, End, Ended, LeaseEnd},
};

use super::{
    database::{Database, begin_unclaimed, claim, lease, result, text_of},
    proxy::{Cut, Lie, LieOf, Proxy, proxied},
};

const LONG: Duration = Duration::from_secs(60);
const CODES: [&str; 4] = ["08P01", "57P01", "58000", "XX000"];
const SIZES: [usize; 2] = [10, 100_000];

async fn behind_a_pooler() -> (Proxy, Database) {
    behind(true).await
}

/// Where no statement fails because it has to be prepared first.
async fn behind_a_pooler_unprepared() -> (Proxy, Database) {
    behind(false).await
}

async fn behind(prepared: bool) -> (Proxy, Database) {
    proxied(2, |store| {
        store
            .with_recovery_timeout(LONG)
            .with_prepared_statements(prepared)
    })
    .await
}

/// Every error that it may make up about one of `of`, with a key for each.
fn lies(of: &'static [LieOf]) -> impl Iterator<Item = (String, Lie)> {
    ["FATAL", "ERROR"].into_iter().flat_map(move |severity| {
        CODES.into_iter().flat_map(move |code| {
            of.iter().map(move |&of| {
                let lie = Lie { severity, code, of };
                (format!("{severity}-{code}-{of:?}"), lie)
            })
        })
    })
}

const CARRIED_OUT: &[LieOf] = &[LieOf::LastAnswer, LieOf::WholeAnswer];
const NEVER_SENT: &[LieOf] = &[LieOf::Request];

/// One call whose commit is answered with `lie`.
async fn call(proxy: &Proxy, database: &Database, claim: &Claim, end: End, lie: Lie) -> Ended {
    let mut transaction = database.begin(claim).await;
    let key = claim.key_prefix.as_deref().unwrap_or_default();
    database.write(&mut transaction, key).await;
    proxy.cut_next_commit(Cut::Lie(lie));
    let ended = database.store.end(transaction, Some(claim), end).await;
    assert!(proxy.has_cut());
    ended
}

#[tokio::test]
async fn an_error_of_a_poolers_after_the_commit_hides_no_commit() {
    let (proxy, database) = behind_a_pooler().await;
    let mut calls = 0;
    for size in SIZES {
        for (key, lie) in lies(CARRIED_OUT) {
            let claim = claim(&format!("{key}-{size}"), "{}");
            let text = "x".repeat(size);
            let end = End::Commit(result(&text));
            let ended = call(&proxy, &database, &claim, end, lie).await;
            assert!(matches!(ended, Ended::AsAsked(_)), "{lie:?}: {ended:?}");
            let again = database.store.begin(&claim.call, Some(&claim)).await;
            let Ok(Claimed::Found(record)) = again else {
                panic!("expected a record, found {again:?}");
            };
            assert_eq!(text_of(&record), text);
            calls += 1;
        }
    }
    assert_eq!(database.effects().await.len(), calls);
}

#[tokio::test]
async fn an_error_of_a_poolers_in_place_of_the_commit_is_not_committed() {
    let (proxy, database) = behind_a_pooler().await;
    for size in SIZES {
        for (key, lie) in lies(NEVER_SENT) {
            let claim = claim(&format!("{key}-{size}"), "{}");
            let end = End::Commit(result(&"x".repeat(size)));
            let ended = call(&proxy, &database, &claim, end, lie).await;
            assert!(matches!(ended, Ended::Aborted(_)), "{lie:?}: {ended:?}");
            assert_eq!(database.records().await, 0);
            assert!(database.effects().await.is_empty());
            let again = database.begin(&claim).await;
            let ended = database.store.end(again, Some(&claim), End::RollBack).await;
            assert!(matches!(ended, Ended::AsAsked(_)), "{lie:?}: {ended:?}");
        }
    }
}

#[tokio::test]
async fn an_error_of_a_poolers_about_an_unprotected_commit_leaves_it_unknown() {
    let (proxy, database) = behind_a_pooler().await;
    for (key, lie) in lies(CARRIED_OUT) {
        let transaction = begin_unclaimed(&database, &claim("unused", "{}"), &key).await;
        proxy.cut_next_commit(Cut::Lie(lie));
        let end = End::CommitUnrecorded;
        let ended = database.store.end(transaction, None, end).await;
        assert!(proxy.has_cut());
        assert!(matches!(ended, Ended::Unknown(_)), "{lie:?}: {ended:?}");
        assert!(database.effects().await.contains(&key));
    }
    for (key, lie) in lies(NEVER_SENT) {
        let transaction = begin_unclaimed(&database, &claim("unused", "{}"), &key).await;
        proxy.cut_next_commit(Cut::Lie(lie));
        let end = End::CommitUnrecorded;
        let ended = database.store.end(transaction, None, end).await;
        // Where the connection goes on, it shows that nothing was committed.
        if lie.severity == "ERROR" {
            assert!(matches!(ended, Ended::Aborted(_)), "{lie:?}: {ended:?}");
        } else {
            assert!(matches!(ended, Ended::Unknown(_)), "{lie:?}: {ended:?}");
        }
        assert!(!database.effects().await.contains(&key));
    }
}

#[tokio::test]
async fn an_error_of_a_poolers_hides_no_completion_together_with_a_transaction() {
    let (proxy, database) = behind_a_pooler().await;
    for (key, lie) in lies(CARRIED_OUT).chain(lies(NEVER_SENT)) {
        let claim = claim(&key, "{}");
        let lease = lease(&database.store, &claim).await;
        let transaction = begin_unclaimed(&database, &claim, &key).await;
        proxy.cut_next_commit(Cut::Lie(lie));
        let end = End::Complete(lease.clone(), result("done"));
        let ended = database.store.end(transaction, None, end).await;
        assert!(proxy.has_cut());
        let happened = database.effects().await.contains(&key);
        if lie.of == LieOf::Request {
            assert!(matches!(ended, Ended::Aborted(_)), "{lie:?}: {ended:?}");
            assert!(!happened, "{lie:?}");
            let renewed = database.store.renew(&lease, LONG).await;
            assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
        } else {
            assert!(matches!(ended, Ended::AsAsked(_)), "{lie:?}: {ended:?}");
            assert!(happened, "{lie:?}");
        }
    }
}

#[tokio::test]
async fn an_error_of_a_poolers_hides_no_recorded_error() {
    let (proxy, database) = behind_a_pooler().await;
    for (key, lie) in lies(CARRIED_OUT).chain(lies(NEVER_SENT)) {
        let claim = claim(&key, "{}");
        let end = End::RollBackAndRecord(result("error"));
        let ended = call(&proxy, &database, &claim, end, lie).await;
        let recorded = database.store.look_up(&claim).await.unwrap().is_some();
        if lie.of == LieOf::Request {
            assert!(matches!(ended, Ended::Aborted(_)), "{lie:?}: {ended:?}");
            assert!(!recorded, "{lie:?}");
        } else {
            assert!(matches!(ended, Ended::AsAsked(_)), "{lie:?}: {ended:?}");
            assert!(recorded, "{lie:?}");
        }
    }
    assert!(database.effects().await.is_empty());
}

#[tokio::test]
async fn an_error_of_a_poolers_hides_no_change_of_a_lease() {
    let (proxy, database) = behind_a_pooler_unprepared().await;
    for (key, lie) in lies(CARRIED_OUT).chain(lies(NEVER_SENT)) {
        let claim = claim(&key, "{}");
        let lease = lease(&database.store, &claim).await;
        proxy.cut_next_commit(Cut::Lie(lie));
        let renewed = database.store.renew(&lease, LONG).await;
        assert!(proxy.has_cut());
        assert!(
            matches!(renewed, Ok(LeaseEnd::Done(_))),
            "{lie:?}: {renewed:?}"
        );
        proxy.cut_next_commit(Cut::Lie(lie));
        let completed = database.store.complete(&lease, result("done")).await;
        assert!(proxy.has_cut());
        assert!(
            matches!(completed, Ok(LeaseEnd::Done(_))),
            "{lie:?}: {completed:?}"
        );
        let record = database.store.look_up(&claim).await.unwrap().unwrap();
        assert_eq!(text_of(&record), "done");
    }
}

#[tokio::test]
async fn an_error_of_a_poolers_hides_no_claim_and_never_gives_the_right_to_run_twice() {
    let (proxy, database) = behind_a_pooler_unprepared().await;
    for (key, lie) in lies(CARRIED_OUT) {
        let claim = claim(&key, "{}");
        proxy.cut_next_commit(Cut::Lie(lie));
        let claimed = database.store.claim(&claim).await;
        assert!(proxy.has_cut());
        assert!(
            matches!(claimed, Ok(Claimed::New(_))),
            "{lie:?}: {claimed:?}"
        );
        let again = database.store.claim(&claim).await;
        assert!(
            matches!(&again, Ok(Claimed::Found(record)) if matches!(record.state, RecordState::InProgress { .. })),
            "{lie:?}: {again:?}"
        );
    }
}

#[tokio::test]
async fn an_error_of_a_poolers_hides_no_resolution() {
    let (proxy, database) = behind_a_pooler_unprepared().await;
    let audit = Audit::new("operator", "asked the other side").unwrap();
    for (key, lie) in lies(CARRIED_OUT) {
        let claim = claim(&key, "{}");
        let lease = lease(&database.store, &claim).await;
        let resolution = Resolution::Committed(result("by hand"));
        proxy.cut_next_commit(Cut::Lie(lie));
        let resolved = database
            .store
            .resolve(lease.id, lease.token, &resolution, &audit)
            .await;
        assert!(proxy.has_cut());
        let error = match resolved {
            Err(error) => error,
            Ok(Resolved::Done(_)) => continue,
            other => panic!("{lie:?}: {other:?}"),
        };
        assert_eq!(
            error.outcome(),
            mcp_idempotent_core::CommitOutcome::Unknown,
            "{lie:?}: {error:?}"
        );
    }
}
