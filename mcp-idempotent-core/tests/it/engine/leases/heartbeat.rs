//! The lease of a running attempt is renewed, and nothing else is.

use std::{
    future::pending,
    time::{Duration, Instant as WallClock},
};

use mcp_idempotent_core::ResultKind;
use tokio::{
    runtime::Builder,
    time::{Instant, sleep},
};

use super::{
    super::{Reply, in_doubt, own, replayed, succeed, until},
    HOUR, IN_DOUBT, ends, faulty, never, seconds,
    store::{Fault, Faulty},
};

async fn lasting(time: Duration) -> Reply {
    sleep(time).await;
    Reply::new(ResultKind::Success, "one")
}

#[tokio::test(start_paused = true)]
async fn a_handler_longer_than_its_lease_keeps_it() {
    let server = faulty(|policy| policy.lease = seconds(120));
    assert_eq!(server.call("k", lasting(HOUR)).await, own("one"));
    // Each between 40 seconds, and a quarter more, after the one before.
    let renewals = server.engine.store().renewals();
    assert!((72..=90).contains(&renewals), "{renewals}");
    assert_eq!(server.call("k", never()).await, replayed("one"));
}

#[tokio::test(start_paused = true)]
async fn renewals_stop_with_the_attempt_however_it_ends() {
    for kind in [
        ResultKind::Success,
        ResultKind::ErrorResult,
        ResultKind::ProtocolError,
        ResultKind::NotExecuted,
        ResultKind::InputRequired,
    ] {
        let server = faulty(|_| {});
        let handler = async {
            sleep(HOUR).await;
            Reply::new(kind, "one")
        };
        server.call("k", handler).await;
        let renewals = server.engine.store().renewals();
        assert!(renewals > 0);
        sleep(HOUR).await;
        assert_eq!(server.engine.store().renewals(), renewals, "{kind:?}");
    }
    let server = faulty(|_| {});
    let mut dropped = server.attempt("k").await;
    let running = dropped.run(pending::<()>());
    assert!(tokio::time::timeout(HOUR, running).await.is_err());
    let handle = dropped.handle();
    drop(dropped);
    let renewals = server.engine.store().renewals();
    sleep(HOUR).await;
    assert_eq!(server.engine.store().renewals(), renewals);
    assert!(!handle.is_lost(), "it was given up");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_up_is_not_renewed_while_the_store_takes_its_time() {
    let server = faulty(|policy| policy.lease = seconds(120));
    let store = server.engine.store().clone();
    store.abandon.set(Fault::Waits);
    let failed = super::start(&server, "k", ends(ResultKind::ProtocolError, "timed out"));
    sleep(HOUR).await;
    assert_eq!(store.renewals(), 0);
    store.abandon.set(Fault::None);
    assert_eq!(failed.await.unwrap(), in_doubt("timed out"));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_for_less_than_the_lease_costs_nothing() {
    for fault in [
        Fault::Fails,
        Fault::Waits,
        Fault::AnswersLate,
        Fault::Swallows,
    ] {
        let server = faulty(|policy| policy.lease = seconds(120));
        let store = server.engine.store().clone();
        let handler = async |handle: mcp_idempotent_core::LeaseHandle| {
            for _ in 0..20 {
                sleep(seconds(200)).await;
                store.renew.set(fault);
                sleep(seconds(65)).await;
                store.renew.set(Fault::None);
            }
            sleep(HOUR).await;
            assert!(!handle.is_lost());
            Reply::new(ResultKind::Success, "one")
        };
        assert_eq!(server.call_handled("k", handler).await, own("one"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_for_longer_ends_the_lease_in_doubt_and_nothing_runs_twice() {
    for fault in [Fault::Fails, Fault::Swallows] {
        let server = faulty(|policy| policy.lease = seconds(120));
        let store = server.engine.store().clone();
        let handler = async |handle: mcp_idempotent_core::LeaseHandle| {
            sleep(seconds(600)).await;
            store.renew.set(fault);
            let away = Instant::now();
            handle.lost().await;
            assert!(handle.is_lost());
            let noticed = away.elapsed();
            assert!(
                (seconds(60)..=seconds(121)).contains(&noticed),
                "{noticed:?}"
            );
            store.renew.set(Fault::None);
            Reply::new(ResultKind::Success, "late")
        };
        assert_eq!(server.call_handled("k", handler).await, IN_DOUBT);
        assert_eq!(server.call("k", never()).await, IN_DOUBT);
        assert_eq!(server.executions(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_not_fenced_is_never_told_that_it_lost_its_lease() {
    let server = faulty(|_| {});
    let handler = async |handle: mcp_idempotent_core::LeaseHandle| {
        let lasts = tokio::time::timeout(HOUR, handle.lost()).await;
        assert!(lasts.is_err(), "it has its lease");
        Reply::new(ResultKind::Success, "one")
    };
    assert_eq!(server.call_handled("k", handler).await, own("one"));
}

#[tokio::test(start_paused = true)]
async fn a_lease_lasts_until_its_result_is_recorded() {
    let server = faulty(|policy| policy.lease = seconds(120));
    let store = server.engine.store().clone();
    server.engine.verify_secret().await.unwrap();
    store.complete.set(Fault::Waits);
    tokio::spawn(async move {
        sleep(HOUR).await;
        store.complete.set(Fault::None);
    });
    assert_eq!(server.call("k", succeed("one")).await, own("one"));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_with_its_result_is_not_said_to_be_lost() {
    let server = faulty(|policy| policy.lease = seconds(120));
    let store = server.engine.store().clone();
    server.engine.verify_secret().await.unwrap();
    // The result is recorded, and the answer takes so long that the lease is to be renewed.
    store.complete.set(Fault::AnswersLate);
    tokio::spawn({
        let store = store.clone();
        async move {
            sleep(HOUR).await;
            store.complete.set(Fault::None);
        }
    });
    let mut attempt = server.attempt("k").await;
    let handle = attempt.handle();
    let reply = attempt.run(succeed("one")).await.unwrap();
    attempt.finish(&reply).await;
    assert!(store.renewals() > 0);
    assert!(!handle.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_answered_late_is_renewed_in_time() {
    let server = faulty(|policy| policy.lease = seconds(120));
    let store = server.engine.store().clone();
    server.engine.verify_secret().await.unwrap();
    store.claim.set(Fault::AnswersLate);
    tokio::spawn(async move {
        sleep(seconds(100)).await;
        store.claim.set(Fault::None);
    });
    assert_eq!(server.call("k", lasting(HOUR)).await, own("one"));
}

#[tokio::test(start_paused = true)]
async fn many_leases_are_each_renewed_at_their_own_heartbeat() {
    let server = faulty(|_| {});
    let calls: Vec<_> = (1..=40)
        .map(|heartbeat| {
            let server = server.under(|policy| {
                policy.heartbeat = Some(seconds(heartbeat));
                policy.lease = seconds(heartbeat * 2);
            });
            let key = format!("k{heartbeat}");
            let id = server.identity(Some(&key), "{}").id;
            let call = tokio::spawn(async move { server.call(&key, lasting(HOUR)).await });
            (heartbeat, id, call)
        })
        .collect();
    for (heartbeat, id, call) in calls {
        assert_eq!(call.await.unwrap(), own("one"));
        let renewals = server.engine.store().renewals_of(id) as u64;
        let most = 3600 / heartbeat;
        assert!(
            (most * 3 / 4..=most).contains(&renewals),
            "every {heartbeat} s: {renewals}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn leases_come_and_go_and_the_last_is_kept_as_the_first() {
    let server = faulty(|policy| policy.lease = seconds(120));
    for key in ["a", "b", "c"] {
        assert_eq!(server.call(key, lasting(seconds(600))).await, own("one"));
        // Long enough that nothing is looked after any more.
        sleep(HOUR).await;
    }
    let short = server.under(|policy| policy.lease = seconds(3));
    let long = super::start(&server, "long", lasting(HOUR));
    until(|| server.executions() == 4).await;
    assert_eq!(short.call("short", lasting(seconds(60))).await, own("one"));
    assert_eq!(long.await.unwrap(), own("one"));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_although_its_engine_is_gone() {
    let server = faulty(|policy| policy.lease = seconds(120));
    let mut attempt = server.attempt("k").await;
    drop(server);
    let reply = attempt.run(lasting(HOUR)).await.unwrap();
    let answer = attempt.finish(&reply).await;
    assert_eq!(super::Outcome::from(answer, Some(reply)), own("one"));
}

#[test]
fn a_runtime_that_has_ended_does_not_keep_another_from_renewing() {
    let server = faulty(|policy| policy.lease = seconds(120));
    for key in ["in-one", "in-another"] {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let outcome = runtime.block_on(server.call(key, lasting(HOUR)));
        assert_eq!(outcome, own("one"), "{key}");
    }
}

/// A handler that keeps its thread until its lease was renewed often enough.
fn keep_the_thread(store: &Faulty, id: mcp_idempotent_core::RecordId) -> Reply {
    let since = WallClock::now();
    while store.renewals_of(id) < 3 {
        assert!(since.elapsed() < seconds(20), "it was not renewed");
        std::thread::yield_now();
    }
    Reply::new(ResultKind::Success, "one")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_keeps_its_thread_is_renewed_by_another() {
    let server = faulty(|policy| policy.lease = Duration::from_millis(600));
    let (store, id) = (
        server.engine.store().clone(),
        server.identity(Some("k"), "{}").id,
    );
    let keeping = async move { keep_the_thread(&store, id) };
    assert_eq!(
        super::start(&server, "k", keeping).await.unwrap(),
        own("one")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_keeps_its_thread_is_renewed_also_where_others_have_time() {
    let server = faulty(|_| {});
    let slow = super::start(&server, "slow", pending());
    until_in_time(|| server.executions() == 1).await;
    let server = server.under(|policy| policy.lease = Duration::from_millis(600));
    let (store, id) = (
        server.engine.store().clone(),
        server.identity(Some("k"), "{}").id,
    );
    let keeping = async move { keep_the_thread(&store, id) };
    assert_eq!(
        super::start(&server, "k", keeping).await.unwrap(),
        own("one")
    );
    slow.abort();
}

async fn until_in_time(condition: impl Fn() -> bool) {
    let since = WallClock::now();
    while !condition() {
        assert!(since.elapsed() < seconds(20));
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_recorded_is_given_and_its_call_is_in_doubt() {
    let server = faulty(|policy| policy.lease = seconds(120));
    server.engine.verify_secret().await.unwrap();
    server.engine.store().complete.set(Fault::Fails);
    let unrecorded = super::Outcome::Unrecorded("one".to_owned());
    assert_eq!(server.call("k", succeed("one")).await, unrecorded);
    let impatient = server.under(|policy| policy.wait = mcp_idempotent_core::Wait::Reject);
    assert_eq!(impatient.call("k", never()).await, super::IN_PROGRESS);
    sleep(seconds(121)).await;
    assert_eq!(server.call("k", never()).await, IN_DOUBT);
    assert_eq!(
        server
            .call("other", ends(ResultKind::NotExecuted, "no"))
            .await,
        own("no")
    );
}
