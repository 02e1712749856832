//! Which secret is an application's: what the store keeps of it, and who is refused.

use std::time::Duration;

use mcp_idempotent_core::{Engine, MemoryStore, Secret, SecretErrorKind, store::Resolution};
use tokio::time::{Instant, advance, sleep};

#[cfg(all(feature = "sqlite", feature = "postgres"))]
use super::rotation::process::Ends;
use super::{
    Outcome, Server,
    leases::store::{Fault, Faulty},
    own, replayed, succeed,
};

pub(super) const A: &str = "the first secret of all";
pub(super) const B: &str = "quite another secret";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const REFUSED: Outcome =
    Outcome::Refused("idempotency_misconfigured", "not_committed", "ask_operator");
const AWAY: Outcome = Outcome::Refused(
    "idempotency_store_unavailable",
    "not_committed",
    "retry_same_key",
);

pub(super) fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

/// A process with this secret; replacing another one, if it says so.
pub(super) fn process(
    store: &Faulty,
    now: Option<&str>,
    previous: Option<Option<&str>>,
) -> Server<Faulty> {
    let server = Server::on(store.clone(), |_| {});
    let mut builder = Engine::builder("tests", store.clone());
    if let Some(now) = now {
        builder = builder.with_secret(secret(now));
    }
    if let Some(previous) = previous {
        builder = builder.with_previous_secret(previous.map(secret));
    }
    Server {
        engine: builder.build(),
        ..server
    }
}

async fn fits(server: &Server<Faulty>) -> bool {
    server.engine.verify_secret().await.is_ok()
}

/// Time in which a serving process asks again, and the answer arrives.
async fn until_asked_again(server: &Server<Faulty>) {
    advance(Engine::<Faulty>::SECRET_CHECKED_EVERY).await;
    server.call("asks-again", succeed("asked")).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn another_secret_or_none_is_refused_at_the_start_in_every_direction() {
    for (first, second) in [(None, Some(A)), (Some(A), None), (Some(A), Some(B))] {
        let store = Faulty::default();
        let (first, second) = (process(&store, first, None), process(&store, second, None));
        assert_eq!(first.call("k", succeed("one")).await, own("one"));
        let error = second.engine.verify_secret().await.unwrap_err();
        assert_eq!(error.kind(), SecretErrorKind::AnotherSecret);
        // What a `main` that returns it prints.
        assert!(format!("{error:?}").contains("give it the same secret"));
        assert_eq!(second.call("k", succeed("two")).await, REFUSED);
        assert_eq!(first.call("k", succeed("two")).await, replayed("one"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_premature_drop_of_the_previous_secret_is_refused_and_a_late_process_without_the_new() {
    for previous in [None, Some(A)] {
        let store = Faulty::default();
        let old = process(&store, previous, None);
        let both = process(&store, Some(B), Some(previous));
        let new = process(&store, Some(B), None);
        assert!(fits(&old).await);
        assert!(!fits(&new).await, "nobody replaces the secret");
        assert!(fits(&both).await);
        assert!(fits(&old).await);
        advance(DAY / 2).await;
        assert!(!fits(&new).await, "half of the retention has passed");
        // It still serves, and what it records from now on has to be found for a day.
        assert!(fits(&old).await);
        advance(DAY).await;
        assert!(!fits(&new).await);
        advance(Duration::from_secs(60)).await;
        assert!(fits(&both).await);
        assert!(fits(&new).await, "a retention has passed");
        assert!(fits(&both).await);

        // What was left over is refused: at the start, and while it serves.
        assert!(!fits(&process(&store, previous, None)).await);
        assert!(!fits(&process(&store, Some("of no use any more"), None)).await);
        // And back again, in the same steps.
        let back = process(&store, previous, Some(Some(B)));
        assert!(fits(&back).await);
        assert!(!fits(&process(&store, previous, None)).await);
        advance(DAY + Duration::from_secs(60)).await;
        assert!(fits(&process(&store, previous, None)).await);
        assert!(!fits(&new).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_serves_notices_within_the_bound_that_its_secret_is_not_the_applications() {
    for previous in [None, Some(A)] {
        let store = Faulty::default();
        let old = process(&store, previous, None);
        assert_eq!(old.call("k", succeed("one")).await, own("one"));
        assert!(fits(&process(&store, Some(B), Some(previous))).await);
        advance(DAY + Duration::from_secs(60)).await;
        assert!(fits(&process(&store, Some(B), None)).await);
        until_asked_again(&old).await;
        assert_eq!(old.call("another", succeed("two")).await, REFUSED);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_with_the_previous_secret_keeps_it_valid_while_it_serves() {
    let store = Faulty::default();
    let (old, both) = (
        process(&store, None, None),
        process(&store, Some(B), Some(None)),
    );
    assert_eq!(old.call("k", succeed("one")).await, own("one"));
    assert!(fits(&both).await);
    for _ in 0..4 {
        advance(DAY / 2).await;
        until_asked_again(&old).await;
    }
    assert!(!fits(&process(&store, Some(B), None)).await);
}

#[tokio::test]
async fn two_replacements_at_once_are_refused() {
    let store = Faulty::default();
    assert!(fits(&process(&store, Some(A), None)).await);
    assert!(fits(&process(&store, Some(B), Some(Some(A)))).await);
    let third = Some("a third secret of all");
    assert!(!fits(&process(&store, third, Some(Some(A)))).await);
    assert!(!fits(&process(&store, third, Some(Some(B)))).await);
    // Who has gone back to the one before serves.
    assert!(fits(&process(&store, Some(A), None)).await);
}

#[tokio::test(start_paused = true)]
async fn first_calls_share_one_question_and_its_bound() {
    let store = Faulty::default();
    let server = process(&store, Some(A), None);
    store.claim.set(Fault::Swallows);
    let started = Instant::now();
    let calls: Vec<_> = (0..12)
        .map(|call| {
            let server = server.clone();
            tokio::spawn(async move {
                let key = format!("key-{call}");
                server.call(&key, succeed("never")).await
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), AWAY);
    }
    assert_eq!(started.elapsed(), Duration::from_secs(10));
    store.claim.set(Fault::None);
    assert_eq!(server.call("k", succeed("one")).await, own("one"));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_does_not_take_the_question_with_it() {
    let store = Faulty::default();
    let server = process(&store, Some(A), None);
    store.claim.set(Fault::Waits);
    let first = tokio::spawn({
        let server = server.clone();
        async move { server.call("first", succeed("one")).await }
    });
    tokio::task::yield_now().await;
    let second = tokio::spawn({
        let server = server.clone();
        async move { server.call("second", succeed("two")).await }
    });
    tokio::task::yield_now().await;
    first.abort();
    store.claim.set(Fault::None);
    assert_eq!(second.await.unwrap(), own("two"));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_asked_again_stops_nobody() {
    let store = Faulty::default();
    let server = process(&store, None, None);
    assert_eq!(server.call("k", succeed("one")).await, own("one"));
    // The check needs to write here, and is not let.
    assert!(fits(&process(&store, Some(B), Some(None))).await);
    sleep(Duration::from_secs(9)).await;
    store.take_over.set(Fault::Swallows);
    let started = Instant::now();
    for call in 0..10 {
        let key = format!("key-{call}");
        assert_eq!(server.call(&key, succeed("one")).await, own("one"));
        assert_eq!(started.elapsed(), Duration::from_secs(call));
        sleep(Duration::from_secs(1)).await;
    }
    // The next question is answered again.
    store.take_over.set(Fault::None);
    sleep(Duration::from_millis(900)).await;
    assert_eq!(server.call("next", succeed("one")).await, own("one"));
    until_asked_again(&server).await;
    assert_eq!(server.call("last", succeed("one")).await, own("one"));
}

/// Until then another process may have dropped the previous secret.
#[tokio::test(start_paused = true)]
async fn a_yes_lasts_for_a_bounded_time_while_the_questions_fail() {
    let store = Faulty::default();
    let server = process(&store, None, None);
    assert!(fits(&process(&store, Some(B), Some(None))).await);
    assert_eq!(server.call("k", succeed("one")).await, own("one"));
    sleep(Duration::from_secs(20)).await;
    for fault in [Fault::Fails, Fault::Swallows] {
        store.take_over.set(fault);
        let started = Instant::now();
        while server.call("k", succeed("two")).await == replayed("one") {
            assert!(started.elapsed() < Duration::from_secs(30), "no bound");
            sleep(Duration::from_secs(1)).await;
        }
        let asked = Instant::now();
        assert_eq!(server.call("k", succeed("two")).await, AWAY);
        assert!(asked.elapsed() <= Duration::from_secs(10));
        store.take_over.set(Fault::None);
        assert_eq!(server.call("k", succeed("two")).await, replayed("one"));
    }
}

/// With the database away, each question fails only after a time.
#[tokio::test(start_paused = true)]
async fn a_failing_question_holds_each_call_up_once() {
    let store = Faulty::default();
    let server = process(&store, Some(A), None);
    let takes = Duration::from_secs(5);
    store.claim.set(Fault::FailsAfter(takes));
    let calls: Vec<_> = (0..12)
        .map(|call| {
            let server = server.clone();
            tokio::spawn(async move {
                // Some come while a question is under way.
                sleep(Duration::from_millis(500) * call).await;
                let called = Instant::now();
                let key = format!("key-{call}");
                (server.call(&key, succeed("never")).await, called.elapsed())
            })
        })
        .collect();
    for call in calls {
        let (answer, after) = call.await.unwrap();
        assert_eq!(answer, AWAY);
        assert!(after <= takes, "{after:?}");
    }
}

#[tokio::test]
async fn what_says_which_secret_is_whose_is_not_listed_among_the_calls() {
    let engine = Engine::new("tests", MemoryStore::new());
    engine.verify_secret().await.unwrap();
    assert!(engine.list(&Default::default()).await.unwrap().is_empty());
    assert_eq!(engine.store().len(), 1);
}

/// An old process that had no calls for longer than the period serves one call after the others have
/// dropped the previous secret.
#[tokio::test(start_paused = true)]
async fn an_old_process_that_was_idle_does_not_run_a_call_again() {
    let store = Faulty::default();
    let old = process(&store, None, None);
    let both = process(&store, Some(B), Some(None));
    assert_eq!(old.call("warm", succeed("warm")).await, own("warm"));
    both.engine.verify_secret().await.unwrap();
    advance(DAY + Duration::from_secs(60)).await;
    let new = process(&store, Some(B), None);
    new.engine.verify_secret().await.unwrap();
    assert_eq!(new.call("pay", succeed("one")).await, own("one"));
    // The client's retry arrives at the old process.
    let retry = old.call("pay", succeed("two")).await;
    assert_ne!(retry, own("two"), "a second effect under one key");
}

#[tokio::test(start_paused = true)]
async fn calls_in_doubt_keep_the_previous_secret_until_they_are_resolved() {
    for previous in [None, Some(A)] {
        let store = Faulty::default();
        let old = process(&store, previous, None);
        let both = process(&store, Some(B), Some(previous));
        old.leave_in_doubt("old").await;
        assert!(fits(&both).await);
        advance(DAY + Duration::from_secs(60)).await;
        // What both versions find is no reason to wait.
        both.leave_in_doubt("new").await;
        let new = process(&store, Some(B), None);
        assert!(!fits(&new).await, "a call in doubt would be forgotten");
        assert_ne!(both.call("old", succeed("two")).await, own("two"));
        old.resolve("old", &Resolution::NotCommitted).await;
        assert!(fits(&new).await);
        assert_eq!(new.call("old", succeed("two")).await, own("two"));
        assert_ne!(new.call("new", succeed("two")).await, own("two"));
    }
}

/// A process that only knows the previous secret begins to serve while the first one drops it.
#[cfg(all(feature = "sqlite", feature = "postgres"))]
#[tokio::test(start_paused = true)]
async fn of_two_processes_that_meet_at_the_drop_of_a_secret_one_is_refused() {
    for late_is_stopped in [true, false] {
        let store = Faulty::default();
        let old = process(&store, None, None);
        assert_eq!(old.call("k", succeed("one")).await, own("one"));
        assert!(fits(&process(&store, Some(B), Some(None))).await);
        advance(DAY + Duration::from_secs(60)).await;
        let late = Ends::new(store.clone());
        let first = Ends::new(store.clone());
        let (stopped, other) = if late_is_stopped {
            (&late, &first)
        } else {
            (&first, &late)
        };
        let engine = |store: &Ends<Faulty>| {
            let builder = Engine::builder("tests", store.clone());
            if std::ptr::eq(store, &late) {
                builder.build()
            } else {
                builder.with_secret(secret(B)).build()
            }
        };
        // Each claims something after it has looked who else is there.
        stopped.claiming.set();
        let (one, two) = (engine(stopped), engine(other));
        let asked = tokio::spawn(async move { one.verify_secret().await.is_ok() });
        super::until(|| stopped.claiming.is_reached()).await;
        let second = two.verify_secret().await.is_ok();
        stopped.claiming.go();
        assert_eq!([second, asked.await.unwrap()], [true, false]);
        // Who was not refused goes on, and the one with both secrets serves in any case.
        assert_eq!(two.verify_secret().await.is_ok(), late_is_stopped);
        assert!(fits(&process(&store, Some(B), Some(None))).await);
    }
}
