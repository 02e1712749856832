//! A process with both secrets dies between its own record and the one under the previous secret.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use mcp_idempotent_core::{Engine, Policy, Store};

use super::{
    super::{Outcome, own, replayed, secret},
    process::{Ends, Point},
    sides::{Both, CHANGES, Effects, Leases, Mode, Side, Transactions},
};

const UNKNOWN: Outcome = Outcome::Refused("idempotency_outcome_unknown", "unknown", "ask_operator");

/// Lets the new side make a call, and drops it at this point.
async fn interrupted<S: Store, M: Mode<Ends<S>>>(
    both: &Both<Ends<S>, M>,
    key: usize,
    point: &Point,
) {
    point.set();
    dropped_at(both.new.outcome(key, false), point).await;
}

/// Drops the call at this point.
pub(super) async fn dropped_at(call: impl Future<Output = Outcome>, point: &Point) {
    let mut call = Box::pin(call);
    for _ in 0..2000 {
        tokio::select! {
            biased;
            outcome = &mut call => panic!("it ended as {outcome:?}"),
            () = tokio::time::sleep(Duration::from_millis(2)) => {}
        }
        if point.is_reached() {
            return;
        }
    }
    panic!("it did not come so far");
}

fn short(policy: &mut Arc<Policy>) {
    shorten(Arc::make_mut(policy));
}

pub(super) fn shorten(policy: &mut Policy) {
    policy.lease = Duration::from_millis(400);
    policy.heartbeat = Some(Duration::from_millis(100));
}

/// The same process, started anew.
fn anew<S: Store, M: Copy>(
    side: &Side<Ends<S>, M>,
    store: S,
    (old, new): (Option<&str>, Option<&str>),
) -> Side<Ends<S>, M> {
    let builder =
        Engine::builder("tests", Ends::new(store)).with_previous_secret(old.map(secret::secret));
    let builder = match new {
        Some(new) => builder.with_secret(secret::secret(new)),
        None => builder,
    };
    side.on(builder.build())
}

async fn a_committed_call_is_found<S: Effects>(store: impl Fn() -> S) {
    let change = CHANGES[0];
    let both = Both::new(change.0, change.1, || Ends::new(store()), Transactions).await;
    let point = Arc::clone(&both.new.engine.store().ended);
    interrupted(&both, 1, &point).await;
    assert_eq!(both.effects().await, 1);
    assert_eq!(both.old.outcome(1, false).await, replayed("execution 0"));
    let again = anew(&both.new, store(), change);
    assert_eq!(again.outcome(1, false).await, replayed("execution 0"));
    assert_eq!(both.effects().await, 1);
}

async fn a_call_that_was_not_committed_runs<S: Effects>(store: impl Fn() -> S) {
    let change = CHANGES[1];
    let mut both = Both::new(change.0, change.1, || Ends::new(store()), Transactions).await;
    short(&mut both.old.policy);
    short(&mut both.new.policy);
    let point = Arc::clone(&both.new.engine.store().ending);
    interrupted(&both, 1, &point).await;
    assert_eq!(both.old.outcome(1, false).await, UNKNOWN);
    let again = anew(&both.new, store(), change);
    assert_eq!(again.outcome(1, false).await, own("execution 1"));
    assert_eq!(both.old.outcome(1, false).await, replayed("execution 1"));
    assert_eq!(both.effects().await, 1);
}

#[tokio::test]
async fn an_end_after_the_commit_is_found_under_both_secrets_in_sqlite() {
    let file = super::sides::SqliteFile::new().await;
    a_committed_call_is_found(|| file.with_limit(Duration::from_millis(200))).await;
}

#[tokio::test]
async fn an_end_after_the_commit_is_found_under_both_secrets_in_postgres() {
    let database = crate::postgres::database::Database::new().await;
    a_committed_call_is_found(|| database.another_process_at_home(4)).await;
}

#[tokio::test]
async fn an_end_before_the_commit_lets_the_call_run_again_in_sqlite() {
    let file = super::sides::SqliteFile::new().await;
    a_call_that_was_not_committed_runs(|| file.with_limit(Duration::from_millis(200))).await;
}

#[tokio::test]
async fn an_end_before_the_commit_lets_the_call_run_again_in_postgres() {
    let database = crate::postgres::database::Database::new().await;
    a_call_that_was_not_committed_runs(|| database.another_process_at_home(4)).await;
}

/// A process takes over the guard of an interrupted transaction, and then its store fails.
async fn a_guard_without_a_new_witness_gets_one_later<S: Effects>(store: impl Fn() -> S) {
    let change = CHANGES[0];
    let mut both = Both::new(change.0, change.1, || Ends::new(store()), Transactions).await;
    short(&mut both.new.policy);
    let point = Arc::clone(&both.new.engine.store().ending);
    interrupted(&both, 1, &point).await;
    let again = anew(&both.new, store(), change);
    again.engine.verify_secret().await.unwrap();
    let process = again.engine.store();
    process.claims.lock().unwrap().clear();
    process.witnesses_fail.store(true, Ordering::SeqCst);
    let refused = again.outcome(1, false).await;
    assert!(
        matches!(
            refused,
            Outcome::Refused(
                "idempotency_store_unavailable" | "idempotency_key_in_progress",
                ..
            )
        ),
        "{refused:?}"
    );
    process.witnesses_fail.store(false, Ordering::SeqCst);
    assert_eq!(again.outcome(1, false).await, own("execution 1"));
    assert_eq!(both.old.outcome(1, false).await, replayed("execution 1"));
    assert_eq!(both.effects().await, 1);
}

#[tokio::test]
async fn a_guard_that_was_taken_over_without_a_witness_gets_one_later_in_sqlite() {
    let file = super::sides::SqliteFile::new().await;
    a_guard_without_a_new_witness_gets_one_later(|| file.with_limit(Duration::from_millis(200)))
        .await;
}

#[tokio::test]
async fn a_guard_that_was_taken_over_without_a_witness_gets_one_later_in_postgres() {
    let database = crate::postgres::database::Database::new().await;
    a_guard_without_a_new_witness_gets_one_later(|| database.another_process_at_home(4)).await;
}

/// A witness has the fingerprint of no call, so no duplicate of its call holds its lock.
#[tokio::test]
async fn a_witness_shares_no_fingerprint_with_its_call() {
    let file = super::sides::SqliteFile::new().await;
    let change = CHANGES[0];
    let both = Both::new(change.0, change.1, || Ends::new(file.store()), Transactions).await;
    let claims = Arc::clone(&both.new.engine.store().claims);
    claims.lock().unwrap().clear();
    assert_eq!(both.new.outcome(1, false).await, own("execution 0"));
    let claims = claims.lock().unwrap();
    let [guard, witness] = &claims[..] else {
        panic!("{claims:?}");
    };
    assert_ne!(guard.fingerprint, witness.fingerprint);
}

#[tokio::test]
async fn an_end_around_the_completion_of_a_lease_is_found_under_both_secrets() {
    let file = super::sides::SqliteFile::new().await;
    let store = || file.with_limit(Duration::from_millis(100));
    let change = CHANGES[0];
    for completed in [false, true] {
        let mut both = Both::new(change.0, change.1, || Ends::new(store()), Leases).await;
        short(&mut both.old.policy);
        short(&mut both.new.policy);
        let process = both.new.engine.store();
        let (key, point, retry) = match completed {
            false => (1, Arc::clone(&process.completing), UNKNOWN),
            true => (2, Arc::clone(&process.completed), replayed("execution 0")),
        };
        interrupted(&both, key, &point).await;
        assert_eq!(both.old.outcome(key, false).await, retry);
        let again = anew(&both.new, store(), change);
        assert_eq!(again.outcome(key, false).await, retry);
        assert_eq!(both.effects().await, 1);
    }
}
