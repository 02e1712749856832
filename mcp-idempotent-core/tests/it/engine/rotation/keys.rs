//! Equal calls under different keys.

mod race;

use std::{sync::Arc, time::Duration};

use mcp_idempotent_core::{
    Begun, Engine, MemoryStore, OnDoubt, Policy, ResultKind, RotatedKeys, Store, Wait,
    store::sqlite::SqliteStore,
};
use tokio::{sync::oneshot, task::JoinSet};

use super::{
    super::{
        Outcome, Reply, Server, in_doubt_until_retried,
        leases::{
            IN_DOUBT,
            store::{Fault, Faulty},
        },
        own, replayed, secret, succeed, until,
    },
    crash,
    process::Ends,
    sides::{self, Effects, Leases, Mode, Side, Transactions},
};

const ROTATED: Outcome =
    Outcome::Refused("idempotency_key_rotated", "not_committed", "use_new_key");

fn minding(rotated_keys: RotatedKeys) -> Server {
    Server::new(|policy| policy.rotated_keys = rotated_keys)
}

async fn pass(time: Duration) {
    tokio::time::advance(time + Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn an_equal_call_under_another_key_is_refused_within_the_window() {
    let server = minding(RotatedKeys::Refuse);
    assert_eq!(server.call("a", succeed("one")).await, own("one"));
    assert_eq!(server.call("b", succeed("two")).await, ROTATED);
    assert_eq!(server.call("a", succeed("two")).await, replayed("one"));
    // A refusal records nothing.
    assert_eq!(server.call("b", succeed("two")).await, ROTATED);
    pass(Policy::DEFAULT_WINDOW).await;
    assert_eq!(server.call("b", succeed("two")).await, own("two"));
    assert_eq!(server.call("a", succeed("three")).await, replayed("one"));
    assert_eq!(server.call("c", succeed("three")).await, ROTATED);
    assert_eq!(server.executions(), 2);
}

#[tokio::test(start_paused = true)]
async fn only_the_same_call_of_the_same_caller_under_a_key_is_minded() {
    for rotated_keys in [RotatedKeys::Refuse, RotatedKeys::Join] {
        let server = minding(rotated_keys);
        assert_eq!(server.call("a", succeed("one")).await, own("one"));
        let ask = async |key: Option<&str>, arguments| {
            let request = server.request(server.identity(key, arguments));
            server.call_as(request, succeed("another")).await
        };
        assert_eq!(ask(Some("b"), r#"{"n":1}"#).await, own("another"));
        assert_eq!(ask(None, "{}").await, own("another"));
        assert_eq!(ask(Some("new-intent:1"), "{}").await, own("another"));
        assert_eq!(ask(Some("new-intent:1"), "{}").await, replayed("another"));
        assert!(matches!(
            ask(Some("a"), r#"{"n":2}"#).await,
            Outcome::Refused("idempotency_key_conflict", ..)
        ));
        // What the conflict claimed in passing is free again.
        assert_eq!(ask(Some("d"), r#"{"n":2}"#).await, own("another"));
        assert_eq!(server.executions(), 5);
    }
}

/// The record in doubt is of other arguments, so it says nothing of this call.
#[tokio::test(start_paused = true)]
async fn a_conflict_with_a_call_in_doubt_holds_no_other_key_back() {
    let server = Server::new(|policy| {
        policy.rotated_keys = RotatedKeys::Refuse;
        policy.on_doubt = OnDoubt::Rerun;
    });
    let fails = async { Reply::new(ResultKind::ProtocolError, "timed out") };
    assert_eq!(
        server.call("a", fails).await,
        in_doubt_until_retried("timed out")
    );
    let ask = async |key: &str| {
        let request = server.request(server.identity(Some(key), r#"{"n":1}"#));
        server.call_as(request, succeed("another")).await
    };
    assert!(matches!(
        ask("a").await,
        Outcome::Refused("idempotency_key_conflict", ..)
    ));
    assert_eq!(ask("b").await, own("another"));
}

#[tokio::test(start_paused = true)]
async fn an_equal_call_under_another_key_gets_the_first_result_and_keeps_it() {
    let server = minding(RotatedKeys::Join);
    assert_eq!(server.call("a", succeed("one")).await, own("one"));
    assert_eq!(server.call("b", succeed("two")).await, replayed("one"));
    pass(Policy::DEFAULT_WINDOW).await;
    // It was answered under this key, so its retry gets the same after the window too.
    assert_eq!(server.call("b", succeed("two")).await, replayed("one"));
    assert_eq!(server.call("c", succeed("two")).await, own("two"));
    assert_eq!(server.executions(), 2);
}

/// A copy acts nowhere, so one that was not finished says nothing of its call.
#[tokio::test(start_paused = true)]
async fn a_result_that_could_not_be_copied_leaves_no_doubt() {
    let server = Server::on(Faulty::default(), |policy| {
        policy.rotated_keys = RotatedKeys::Join;
    });
    assert_eq!(server.call("a", succeed("one")).await, own("one"));
    let store = server.engine.store();
    store.complete.set(Fault::Fails);
    assert!(matches!(
        server.call("b", succeed("two")).await,
        Outcome::Refused("idempotency_store_unavailable", ..)
    ));
    store.complete.set(Fault::None);
    pass(Policy::DEFAULT_LEASE).await;
    assert_eq!(server.call("b", succeed("two")).await, replayed("one"));
    assert_eq!(server.executions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_copy_whose_lease_lapsed_is_made_again() {
    let server = Server::on(Faulty::default(), |policy| {
        policy.rotated_keys = RotatedKeys::Join;
    });
    assert_eq!(server.call("a", succeed("one")).await, own("one"));
    let store = server.engine.store();
    let records = store.len();
    store.complete.set(Fault::Waits);
    let second = tokio::spawn({
        let server = server.clone();
        async move { server.call("b", succeed("two")).await }
    });
    until(|| store.len() > records).await;
    tokio::time::advance(Policy::DEFAULT_LEASE).await;
    store.complete.set(Fault::None);
    // It was fenced, so there is no record under this key yet, and the caller's time is over.
    assert!(matches!(
        second.await.unwrap(),
        Outcome::Refused("idempotency_key_in_progress", ..)
    ));
    assert_eq!(server.call("b", succeed("two")).await, replayed("one"));
    pass(Policy::DEFAULT_WINDOW).await;
    assert_eq!(server.call("b", succeed("two")).await, replayed("one"));
    assert_eq!(server.executions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_joins_the_running_one_under_another_key_or_is_refused_at_once() {
    for rotated_keys in [RotatedKeys::Join, RotatedKeys::Refuse] {
        let server = minding(rotated_keys);
        let (ends, ended) = oneshot::channel();
        let first = tokio::spawn({
            let server = server.clone();
            async move { server.call("a", async { ended.await.unwrap() }).await }
        });
        until(|| server.executions() == 1).await;
        if rotated_keys == RotatedKeys::Refuse {
            assert_eq!(server.call("b", succeed("two")).await, ROTATED);
            ends.send(succeed("one").await).ok().unwrap();
        } else {
            let impatient = server.under(|policy| policy.wait = Wait::Reject);
            let refused = impatient.call("c", succeed("two")).await;
            assert!(matches!(
                refused,
                Outcome::Refused("idempotency_key_in_progress", ..)
            ));
            let second = tokio::spawn({
                let server = server.clone();
                async move { server.call("b", succeed("two")).await }
            });
            ends.send(succeed("one").await).ok().unwrap();
            assert_eq!(second.await.unwrap(), replayed("one"));
        }
        assert_eq!(first.await.unwrap(), own("one"));
        assert_eq!(server.executions(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_only_reported_runs_and_knows_since_when() {
    let server = minding(RotatedKeys::Report);
    assert_eq!(server.call("a", succeed("one")).await, own("one"));
    let request = server.request(server.identity(Some("b"), "{}"));
    let Begun::Attempt(attempt) = server.engine.begin_lease(request).await else {
        panic!("it runs");
    };
    let rotated = attempt.rotated_key().expect("an equal call was made");
    assert!(rotated.at.is_some());
    attempt.finish(&succeed("two").await).await;
    assert_eq!(server.call("b", succeed("three")).await, replayed("two"));
    let request = server.request(server.identity(Some("c"), r#"{"n":1}"#));
    let Begun::Attempt(attempt) = server.engine.begin_lease(request).await else {
        panic!("it runs");
    };
    assert_eq!(attempt.rotated_key(), None);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_for_equal_calls_unless_the_policy_minds_them() {
    for (rotated_keys, records) in [(RotatedKeys::Allow, 1), (RotatedKeys::Refuse, 2)] {
        let server = minding(rotated_keys);
        // The engine's own records are made at the first call.
        server.call("new-intent:first", succeed("zero")).await;
        let before = server.engine.store().len();
        server.call("a", succeed("one")).await;
        assert_eq!(server.engine.store().len() - before, records);
    }
    let server = minding(RotatedKeys::Allow);
    for (n, key) in ["a", "b"].into_iter().enumerate() {
        server.call(key, succeed("one")).await;
        assert_eq!(server.executions(), n + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_not_executed_holds_no_other_key_back() {
    let server = minding(RotatedKeys::Refuse);
    let not_executed = Reply::new(ResultKind::NotExecuted, "busy");
    assert_eq!(server.call("a", async { not_executed }).await, own("busy"));
    assert_eq!(server.call("b", succeed("two")).await, own("two"));
}

#[tokio::test(start_paused = true)]
async fn a_call_in_doubt_holds_other_keys_back_for_the_window() {
    for rotated_keys in [RotatedKeys::Refuse, RotatedKeys::Join] {
        for on_doubt in [OnDoubt::Fail, OnDoubt::Rerun] {
            let server = Server::new(|policy| {
                policy.rotated_keys = rotated_keys;
                policy.on_doubt = on_doubt;
            });
            let interrupted = Reply::new(ResultKind::Interrupted, "panicked");
            server.call("a", async { interrupted }).await;
            assert_eq!(server.call("b", succeed("two")).await, IN_DOUBT);
            if on_doubt == OnDoubt::Rerun {
                // The key itself has its way out, and then the others know what happened.
                assert_eq!(server.call("a", succeed("again")).await, own("again"));
                let expected = match rotated_keys {
                    RotatedKeys::Join => replayed("again"),
                    _ => ROTATED,
                };
                assert_eq!(server.call("b", succeed("two")).await, expected);
            } else {
                assert_eq!(server.call("a", succeed("again")).await, IN_DOUBT);
                pass(Policy::DEFAULT_WINDOW).await;
                assert_eq!(server.call("b", succeed("two")).await, own("two"));
            }
        }
    }
}

#[tokio::test]
async fn a_transaction_that_was_rolled_back_holds_no_other_key_back() {
    for kind in [ResultKind::ErrorResult, ResultKind::ProtocolError] {
        let ran = Arc::default();
        let file = sides::SqliteFile::new().await;
        let side = Side::alone(file.store(), Transactions, &ran, |policy| {
            policy.rotated_keys = RotatedKeys::Refuse;
        });
        let begun = side.engine.begin_transaction(side.request_for("a", 0));
        let (mut transaction, attempt) = begun.await.unwrap();
        let wrote = attempt.run(SqliteStore::write(&mut transaction)).await;
        wrote.unwrap();
        let failed = Reply::new(kind, "failed");
        attempt.finish(Some(transaction), &failed).await;
        assert_eq!(side.effects().await, 0);
        assert_eq!(side.asked("b", 0).await, own("execution 0"));
        assert_eq!(side.asked("c", 0).await, ROTATED);
        assert_eq!(side.effects().await, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn rotated_keys_are_not_minded_while_a_secret_is_replaced_and_the_call_says_so() {
    let mut policy = Policy::default();
    for (rotated_keys, holds) in [(RotatedKeys::Allow, true), (RotatedKeys::Join, false)] {
        policy.rotated_keys = rotated_keys;
        let store = Faulty::default();
        let server = secret::process(&store, Some(secret::A), Some(None))
            .under(|changed| changed.rotated_keys = rotated_keys);
        assert_eq!(server.engine.check_policy(&policy).is_ok(), holds);
        let answer = server.call("a", succeed("one")).await;
        let refused = matches!(answer, Outcome::Refused("idempotency_misconfigured", ..));
        assert_eq!(refused, !holds, "{answer:?}");
    }
    let engine = Engine::new("tests", MemoryStore::new());
    assert_eq!(engine.check_policy(&policy), Ok(()));
}

/// A process dies under one key, and then the call is made under others.
async fn a_crash_is_over_when_its_lease_has_ended<S: Effects>(
    store: impl Fn() -> S,
    dies_before_the_commit: bool,
) {
    let ran = Arc::default();
    let minding = |policy: &mut Policy| {
        policy.rotated_keys = RotatedKeys::Join;
        crash::shorten(policy);
    };
    let victim = Side::alone(Ends::new(store()), Transactions, &ran, minding);
    let process = victim.engine.store();
    let (point, expected) = if dies_before_the_commit {
        (&process.ending, own("execution 1"))
    } else {
        (&process.ended, replayed("execution 0"))
    };
    point.set();
    crash::dropped_at(victim.asked("a", 0), point).await;
    let other = Side::alone(store(), Transactions, &ran, minding);
    assert_eq!(other.asked("b", 0).await, expected);
    let (Outcome::Own(result) | Outcome::Replayed(result)) = expected else {
        panic!("it has a result");
    };
    for key in ["a", "b", "c"] {
        assert_eq!(other.asked(key, 0).await, replayed(&result));
    }
    assert_eq!(other.effects().await, 1);
}

#[tokio::test]
async fn a_crash_holds_other_keys_back_for_one_lease_in_sqlite() {
    for dies_before_the_commit in [true, false] {
        let file = sides::SqliteFile::new().await;
        let store = || file.with_limit(Duration::from_millis(100));
        a_crash_is_over_when_its_lease_has_ended(store, dies_before_the_commit).await;
    }
}

#[tokio::test]
async fn a_crash_holds_other_keys_back_for_one_lease_in_postgres() {
    for dies_before_the_commit in [true, false] {
        let database = crate::postgres::database::Database::new().await;
        let store = || database.another_process_at_home(4);
        a_crash_is_over_when_its_lease_has_ended(store, dies_before_the_commit).await;
    }
}
