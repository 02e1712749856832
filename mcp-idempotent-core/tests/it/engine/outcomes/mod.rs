//! How each call is counted and timed.

macro_rules! record {
    ($snapshotter:ident) => {
        let recorder = DebuggingRecorder::new();
        let $snapshotter = recorder.snapshotter();
        let _local = metrics::set_default_local_recorder(&recorder);
    };
}

#[cfg(feature = "sqlite")]
mod transaction;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Action, Bytes, CallInfo, CommitOutcome, Engine, ErrorKind, InDoubtCall, MemoryStore, OnDoubt,
    OnExpired, Policy, Refusal, Request, ResultKind, Scope, Verdict, Verify, Wait, telemetry,
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::sync::oneshot;

use super::{
    Outcome, Reply, Server,
    refusals::{Away, Guard},
    succeed, until,
};

/// What was reported since the last look: name and labels but the application, and the value.
fn reported(snapshotter: &Snapshotter) -> BTreeMap<(String, Vec<String>), Vec<f64>> {
    let mut reported = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        let mut labels = key.labels();
        let application = labels.next().unwrap();
        assert_eq!(application.key(), telemetry::LABEL_APPLICATION);
        assert_eq!(application.value(), "tests");
        let labels = labels
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let value = match value {
            DebugValue::Counter(0) => vec![],
            #[expect(clippy::cast_precision_loss, reason = "a handful of calls")]
            DebugValue::Counter(count) => vec![count as f64],
            DebugValue::Gauge(value) => vec![value.into_inner()],
            DebugValue::Histogram(values) => values.into_iter().map(|v| v.into_inner()).collect(),
        };
        if !value.is_empty() {
            reported.insert((key.name().to_owned(), labels), value);
        }
    }
    reported
}

/// The outcomes counted since the last look.
fn counted(snapshotter: &Snapshotter) -> Vec<(String, u32)> {
    let reported = reported(snapshotter);
    let counted: Vec<_> = reported
        .iter()
        .filter(|((name, _), _)| name == telemetry::CALLS)
        .map(|((_, labels), value)| {
            let [tool, outcome] = &**labels else {
                panic!("labels of a call: {labels:?}");
            };
            assert_eq!(tool, "tool=tool");
            let outcome = outcome.strip_prefix("outcome=").unwrap();
            assert!(
                telemetry::Outcome::ALL
                    .iter()
                    .any(|known| known.as_str() == outcome)
            );
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a handful of calls"
            )]
            (outcome.to_owned(), value[0] as u32)
        })
        .collect();
    let calls: u32 = counted.iter().map(|(_, count)| count).sum();
    let durations: usize = reported
        .iter()
        .filter(|((name, _), _)| name == telemetry::CALL_DURATION)
        .map(|(_, values)| values.len())
        .sum();
    assert_eq!(durations, usize::try_from(calls).unwrap());
    counted
}

fn one(outcome: &str) -> Vec<(String, u32)> {
    vec![(outcome.to_owned(), 1)]
}

fn two(first: &str, second: &str) -> Vec<(String, u32)> {
    let mut both = [one(first), one(second)].concat();
    both.sort();
    both
}

#[tokio::test]
async fn a_call_its_retry_and_a_conflict_are_counted_as_such() {
    record!(seen);
    let server = Server::new(|_| {});
    server.call("k", succeed("one")).await;
    assert_eq!(counted(&seen), one("executed"));
    server.call("k", succeed("two")).await;
    assert_eq!(counted(&seen), one("replayed"));
    let other = server.request(server.identity(Some("k"), r#"{"other":true}"#));
    server.call_as(other, succeed("two")).await;
    assert_eq!(counted(&seen), one("conflict"));
}

#[tokio::test]
async fn handlers_that_decided_nothing_are_counted_apart() {
    record!(seen);
    for (kind, outcome) in [
        (ResultKind::ErrorResult, "executed"),
        (ResultKind::Task, "executed"),
        (ResultKind::NotExecuted, "executed"),
        (ResultKind::NotCalled, "not_called"),
        (ResultKind::InputRequired, "input_required"),
    ] {
        let server = Server::new(|_| {});
        server.call("k", async { Reply::new(kind, "") }).await;
        assert_eq!(counted(&seen), one(outcome), "{kind:?}");
    }
}

#[tokio::test]
async fn an_attempt_that_leaves_doubt_and_the_retry_it_refuses_are_counted_apart() {
    record!(seen);
    let server = Server::new(|_| {});
    let fail = async { Reply::new(ResultKind::ProtocolError, "timed out") };
    server.call("failed", fail).await;
    assert_eq!(counted(&seen), one("left_in_doubt"));
    server.call("failed", succeed("two")).await;
    assert_eq!(counted(&seen), one("in_doubt"));
    server
        .call("panicked", async { panic!("a test's handler") })
        .await;
    assert_eq!(counted(&seen), one("left_in_doubt"));
}

#[tokio::test]
async fn an_attempt_at_a_call_in_doubt_is_counted_as_a_rerun_unless_it_leaves_doubt_again() {
    record!(seen);
    let server = Server::new(|policy| policy.on_doubt = OnDoubt::Rerun);
    let fail = || async { Reply::new(ResultKind::ProtocolError, "timed out") };
    server.call("k", fail()).await;
    assert_eq!(counted(&seen), one("left_in_doubt"));
    server.call("k", fail()).await;
    assert_eq!(counted(&seen), one("left_in_doubt"));
    server.call("k", succeed("three")).await;
    assert_eq!(counted(&seen), one("rerun"));
    server.call("k", succeed("four")).await;
    assert_eq!(counted(&seen), one("replayed"));
}

/// What another system knows.
struct Knows(Verdict);

impl Verify for Knows {
    fn verify<'a>(&'a self, _: &'a InDoubtCall) -> BoxFuture<'a, Verdict> {
        Box::pin(std::future::ready(self.0.clone()))
    }
}

#[tokio::test]
async fn a_call_that_is_found_out_about_is_counted_by_what_was_found() {
    record!(seen);
    let server = Server::new(|policy| policy.on_doubt = OnDoubt::Verify);
    let committed = Verdict::Committed(Bytes::from_static(b"charged"));
    for (verdict, outcome) in [
        (Verdict::Unknown, "in_doubt"),
        (Verdict::NotCommitted, "executed"),
        (committed, "verified"),
    ] {
        let fail = async { Reply::new(ResultKind::ProtocolError, "timed out") };
        server.call(outcome, fail).await;
        assert_eq!(counted(&seen), one("left_in_doubt"));
        let knows = Knows(verdict);
        let request = server.request(server.identity(Some(outcome), "{}"));
        server
            .call_as(request.with_verify(&knows), succeed("two"))
            .await;
        assert_eq!(counted(&seen), one(outcome));
    }
}

#[tokio::test]
async fn a_late_attempt_is_counted_as_fenced() {
    tokio::time::pause();
    record!(seen);
    let server = Server::new(|policy| policy.lease = Duration::from_secs(5));
    let slow = async {
        tokio::time::advance(Duration::from_secs(6)).await;
        Reply::new(ResultKind::Success, "late")
    };
    server.call("k", slow).await;
    assert_eq!(counted(&seen), one("fenced"));
}

#[tokio::test]
async fn records_without_a_result_are_counted_by_why() {
    tokio::time::pause();
    record!(seen);
    let server = Server::new(|policy| {
        policy.max_result_bytes = 3;
        policy.retention = Duration::from_secs(10);
        policy.on_expired = OnExpired::Refuse;
    });
    server.call("k", succeed("four")).await;
    counted(&seen);
    server.call("k", succeed("two")).await;
    assert_eq!(counted(&seen), one("too_large"));
    tokio::time::advance(Duration::from_secs(11)).await;
    server.call("k", succeed("three")).await;
    assert_eq!(counted(&seen), one("expired"));
}

#[tokio::test]
async fn a_caller_without_a_right_is_counted() {
    record!(seen);
    let (server, guard) = (Server::new(|_| {}), Guard::default());
    guard.shut.store(true, Ordering::SeqCst);
    let request = server
        .request(server.identity(Some("k"), "{}"))
        .with_authorize(&guard);
    server.call_as(request, succeed("one")).await;
    assert_eq!(counted(&seen), one("unauthorized"));
}

#[tokio::test]
async fn calls_refused_before_they_have_an_identity_are_counted() {
    record!(seen);
    let server = Server::new(|_| {});
    for (kind, outcome) in [
        (ErrorKind::KeyInvalid, "key_invalid"),
        (ErrorKind::KeyRequired, "key_required"),
        (ErrorKind::Misconfigured, "misconfigured"),
    ] {
        let refusal = Refusal::new(kind, CommitOutcome::NotCommitted, Action::UseNewKey, "");
        let observed = telemetry::ObservedCall::start(
            server.engine.application(),
            &"tool".into(),
            true,
            None,
            None,
        );
        observed.refused(&refusal);
        assert_eq!(counted(&seen), one(outcome));
    }
}

#[tokio::test]
async fn a_store_that_is_away_is_counted_and_so_is_what_runs_all_the_same() {
    record!(seen);
    let engine = Engine::new("tests", Away);
    let server = Server::new(|_| {});
    let begin = async |policy: Policy| {
        let (policy, identity) = (Arc::new(policy), server.identity(Some("k"), "{}"));
        let call = CallInfo::new("tool", Scope::new("alice"));
        engine
            .begin_lease(Request::new(call, identity, &policy))
            .await
    };
    begin(Policy::default()).await;
    assert_eq!(counted(&seen), one("store_error"));
    let mut open = Policy::default();
    open.run_unprotected_when_store_is_unavailable = true;
    begin(open).await;
    assert_eq!(counted(&seen), one("failed_open"));
}

#[tokio::test]
async fn a_call_that_is_dropped_is_counted_as_abandoned() {
    record!(seen);
    let server = Server::new(|_| {});
    let request = server.request(server.identity(Some("k"), "{}"));
    let begun = server.engine.begin_lease(request).await;
    assert!(counted(&seen).is_empty(), "it has not ended");
    drop(begun);
    assert_eq!(counted(&seen), one("abandoned"));
}

#[tokio::test]
async fn a_tool_that_is_not_listed_makes_no_series_of_its_own() {
    record!(seen);
    let server = Server::new(|_| {});
    let call = CallInfo::new("made-up", Scope::new("alice"));
    let request =
        Request::new(call, server.identity(Some("k"), "{}"), &server.policy).with_unlisted_tool();
    server.call_as(request, succeed("one")).await;
    for ((name, labels), _) in reported(&seen) {
        assert!(
            labels.is_empty() || labels[0] == "tool=(unlisted)",
            "{name} {labels:?}"
        );
    }
}

/// A running call, and one that waits for it.
async fn running_and_waiting(
    server: &Server,
) -> (
    tokio::task::JoinHandle<Outcome>,
    oneshot::Sender<ResultKind>,
    tokio::task::JoinHandle<Outcome>,
) {
    let (end, ended) = oneshot::channel();
    let (first, other) = (server.clone(), server.clone());
    let first = tokio::spawn(async move {
        let handler = async move { Reply::new(ended.await.unwrap(), "one") };
        first.call("k", handler).await
    });
    until(|| server.executions() == 1).await;
    let other = tokio::spawn(async move {
        let fail = async { Reply::new(ResultKind::NotExecuted, "two") };
        other.call("k", fail).await
    });
    until(|| server.engine.waiting() == 1).await;
    (first, end, other)
}

#[tokio::test]
async fn running_and_waiting_calls_are_in_the_gauges_and_their_times_in_the_histograms() {
    tokio::time::pause();
    record!(seen);
    let server = Server::new(|_| {});
    let (first, end, other) = running_and_waiting(&server).await;
    let gauge = |name: &str| (name.to_owned(), Vec::new());
    let now = reported(&seen);
    assert_eq!(now[&gauge(telemetry::CALLS_IN_FLIGHT)], [2.0]);
    assert_eq!(now[&gauge(telemetry::CALLS_WAITING)], [1.0]);
    tokio::time::advance(Duration::from_secs(2)).await;
    end.send(ResultKind::Success).unwrap();
    first.await.unwrap();
    other.await.unwrap();
    let ended = reported(&seen);
    // A look sets them to zero.
    assert_eq!(ended[&gauge(telemetry::CALLS_IN_FLIGHT)], [-2.0]);
    assert_eq!(ended[&gauge(telemetry::CALLS_WAITING)], [-1.0]);
    let of = |name: &str, labels: &[&str]| {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        ended[&(name.to_owned(), labels)].clone()
    };
    assert_eq!(of(telemetry::HANDLER_DURATION, &["tool=tool"]), [2.0]);
    assert_eq!(of(telemetry::WAIT_DURATION, &["tool=tool"]), [2.0]);
    for outcome in ["outcome=executed", "outcome=joined"] {
        let labels = ["tool=tool", outcome];
        assert_eq!(of(telemetry::CALL_DURATION, &labels), [2.0]);
        assert_eq!(of(telemetry::CALLS, &labels), [1.0]);
    }
}

#[tokio::test]
async fn duplicates_that_do_not_or_may_not_wait_are_counted_apart() {
    record!(seen);
    let mut server = Server::new(|_| {});
    server.engine = Engine::builder("tests", MemoryStore::new())
        .with_waiter_limits(1, 10)
        .build();
    let (first, end, other) = running_and_waiting(&server).await;
    server.call("k", succeed("three")).await;
    assert_eq!(counted(&seen), one("too_many_waiting"));
    let mut policy = Policy::default();
    policy.wait = Wait::Reject;
    let (policy, identity) = (Arc::new(policy), server.identity(Some("k"), "{}"));
    let call = CallInfo::new("tool", Scope::new("alice"));
    server
        .engine
        .begin_lease(Request::new(call, identity, &policy))
        .await;
    assert_eq!(counted(&seen), one("in_progress"));
    end.send(ResultKind::Success).unwrap();
    first.await.unwrap();
    other.await.unwrap();
    assert_eq!(counted(&seen), two("executed", "joined"));
}
