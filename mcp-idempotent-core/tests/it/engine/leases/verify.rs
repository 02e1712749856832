//! The author's own function finds out about a call in doubt.

mod stale;

use std::{
    collections::VecDeque,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Begun, Bytes, InDoubtCall, OnDoubt, Policy, ResultKind, Verdict, Verify, Wait,
    store::{Audit, Completion, Resolution},
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{
    super::{
        Outcome, Reply, Server, in_doubt_until_retried, joined, own, replayed, succeed, until,
    },
    ASK_AGAIN, CONFLICT, IN_DOUBT, IN_PROGRESS, elsewhere, ends, faulty, never, seconds, settle,
    store::{Fault, Faulty},
};

/// What one asking comes to.
enum Finding {
    Says(Verdict),
    SaysWhenTold(oneshot::Receiver<Verdict>),
    SaysAfter(u64, Verdict),
    Panics,
    PanicsAtOnce,
    Hangs,
}

/// Another system, asked about calls in doubt.
#[derive(Clone, Default)]
struct OtherSide {
    findings: Arc<Mutex<VecDeque<Finding>>>,
    asked: Arc<AtomicUsize>,
    saw: Arc<Mutex<Vec<(String, u32)>>>,
}

impl OtherSide {
    fn new(findings: impl IntoIterator<Item = Finding>) -> Self {
        Self {
            findings: Arc::new(Mutex::new(findings.into_iter().collect())),
            ..Self::default()
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Verify for OtherSide {
    fn verify<'a>(&'a self, call: &'a InDoubtCall) -> BoxFuture<'a, Verdict> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let seen = (call.downstream_key("charge").to_string(), call.attempts());
        self.saw.lock().unwrap().push(seen);
        let finding = self.findings.lock().unwrap().pop_front();
        let finding = finding.expect("it is not asked more often");
        if matches!(finding, Finding::PanicsAtOnce) {
            panic!("a test's function");
        }
        Box::pin(async move {
            match finding {
                Finding::Says(verdict) => verdict,
                Finding::SaysWhenTold(told) => told.await.unwrap(),
                Finding::SaysAfter(after, verdict) => {
                    sleep(seconds(after)).await;
                    verdict
                }
                Finding::Panics | Finding::PanicsAtOnce => panic!("a test's function"),
                Finding::Hangs => pending().await,
            }
        })
    }
}

fn committed(text: &str) -> Verdict {
    Verdict::Committed(Bytes::from(text.to_owned()))
}

fn verifying(change: impl FnOnce(&mut Policy)) -> Server<Faulty> {
    faulty(|policy| {
        policy.on_doubt = OnDoubt::Verify;
        change(policy);
    })
}

impl Server<Faulty> {
    async fn verified(
        &self,
        key: &str,
        other_side: &OtherSide,
        handler: impl Future<Output = Reply>,
    ) -> Outcome {
        let request = self.request(self.identity(Some(key), "{}"));
        self.call_as(request.with_verify(other_side), handler).await
    }

    fn start_verified(
        &self,
        key: &'static str,
        other_side: &OtherSide,
        handler: impl Future<Output = Reply> + Send + 'static,
    ) -> tokio::task::JoinHandle<Outcome> {
        let (server, other_side) = (self.clone(), other_side.clone());
        tokio::spawn(async move { server.verified(key, &other_side, handler).await })
    }

    /// What a call finds that may not change anything.
    async fn look(&self, key: &str) -> Outcome {
        let strict = self.under(|policy| policy.on_doubt = OnDoubt::Fail);
        strict.call(key, never()).await
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_about_a_call_that_is_not_in_doubt() {
    let server = verifying(|_| {});
    let other_side = OtherSide::default();
    let first = server.verified("k", &other_side, succeed("one")).await;
    assert_eq!(first, own("one"));
    let retry = server.verified("k", &other_side, never()).await;
    assert_eq!(retry, replayed("one"));
    assert_eq!(other_side.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_committed_is_recorded_and_replayed_and_not_run() {
    let server = verifying(|_| {});
    server.leave_in_doubt("k").await;
    let other_side = OtherSide::new([Finding::Says(committed("charged"))]);
    let found = server.verified("k", &other_side, never()).await;
    assert_eq!(found, replayed("charged"));
    // From here on it is a record as any other, and nobody is asked.
    assert_eq!(
        server.verified("k", &other_side, never()).await,
        replayed("charged")
    );
    assert_eq!(server.look("k").await, replayed("charged"));
    assert_eq!((server.executions(), other_side.asked()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_was_not_committed_runs_once() {
    let server = verifying(|_| {});
    server.leave_in_doubt("k").await;
    let other_side = OtherSide::new([Finding::Says(Verdict::NotCommitted)]);
    let ran = server.verified("k", &other_side, succeed("two")).await;
    assert_eq!(ran, own("two"));
    assert_eq!(
        server.verified("k", &other_side, never()).await,
        replayed("two")
    );
    assert_eq!((server.executions(), other_side.asked()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_known_stays_in_doubt_and_the_next_call_asks_again() {
    for finding in [
        Finding::Says(Verdict::Unknown),
        Finding::Panics,
        Finding::PanicsAtOnce,
        Finding::Hangs,
    ] {
        let server = verifying(|policy| policy.verify_timeout = seconds(7));
        server.leave_in_doubt("k").await;
        let hangs = matches!(finding, Finding::Hangs);
        let other_side = OtherSide::new([finding, Finding::Says(committed("charged"))]);
        let asked = Instant::now();
        let found = server.verified("k", &other_side, never()).await;
        assert_eq!(found, ASK_AGAIN);
        assert_eq!(asked.elapsed(), seconds(if hangs { 7 } else { 0 }));
        assert_eq!(server.look("k").await, IN_DOUBT);
        assert_eq!(
            server.verified("k", &other_side, never()).await,
            replayed("charged")
        );
        assert_eq!((server.executions(), other_side.asked()), (1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn the_function_sees_the_keys_that_the_attempts_passed_on_and_how_many_there_were() {
    let server = verifying(|_| {});
    let mut passed_on = Vec::new();
    let mut pass_on = async |handle: mcp_idempotent_core::LeaseHandle| {
        passed_on.push(handle.downstream_key("charge").to_string());
        Reply::new(ResultKind::ProtocolError, "timed out")
    };
    server.call_handled("k", &mut pass_on).await;
    let other_side = OtherSide::new([
        Finding::Says(Verdict::Unknown),
        Finding::Says(Verdict::NotCommitted),
    ]);
    server.verified("k", &other_side, never()).await;
    let request = server.request(server.identity(Some("k"), "{}"));
    server
        .call_with(request.with_verify(&other_side), pass_on)
        .await;
    let saw = other_side.saw.lock().unwrap().clone();
    assert_eq!(passed_on[0], passed_on[1]);
    assert_eq!(saw, [(passed_on[0].clone(), 1), (passed_on[0].clone(), 2)]);
}

#[tokio::test(start_paused = true)]
async fn while_the_function_asks_duplicates_wait_or_are_told_that_the_call_is_in_progress() {
    for (verdict, waited, waited_elsewhere) in [
        (committed("two"), joined("two"), replayed("two")),
        (Verdict::NotCommitted, joined("two"), replayed("two")),
        (Verdict::Unknown, ASK_AGAIN, ASK_AGAIN),
    ] {
        let server = verifying(|_| {});
        server.leave_in_doubt("k").await;
        let elsewhere = elsewhere(&server);
        let (tell, told) = oneshot::channel();
        let other_side = OtherSide::new([
            Finding::SaysWhenTold(told),
            // Only the other process asks a second time, and only where the first found nothing.
            Finding::Says(Verdict::Unknown),
        ]);
        let first = server.start_verified("k", &other_side, succeed("two"));
        until(|| other_side.asked() == 1).await;
        let waiting = server.start_verified("k", &other_side, never());
        until(|| server.engine.waiting() == 1).await;
        let waiting_elsewhere = elsewhere.start_verified("k", &other_side, never());
        settle().await;
        for server in [&server, &elsewhere] {
            let impatient = server.under(|policy| policy.wait = Wait::Reject);
            let told = impatient.verified("k", &other_side, never()).await;
            assert_eq!(told, IN_PROGRESS);
            let other = server.request(server.identity(Some("k"), r#"{"other":true}"#));
            let told = server
                .call_as(other.with_verify(&other_side), never())
                .await;
            assert_eq!(told, CONFLICT);
        }
        assert_eq!(other_side.asked(), 1);
        let unknown = verdict == Verdict::Unknown;
        tell.send(verdict).unwrap();
        first.await.unwrap();
        assert_eq!(waiting.await.unwrap(), waited);
        assert_eq!(waiting_elsewhere.await.unwrap(), waited_elsewhere);
        assert_eq!(other_side.asked(), if unknown { 2 } else { 1 });
    }
}

#[tokio::test(start_paused = true)]
async fn another_call_under_a_key_in_doubt_is_a_conflict_and_nobody_is_asked() {
    let server = verifying(|_| {});
    server.leave_in_doubt("k").await;
    let other_side = OtherSide::default();
    let other = server.request(server.identity(Some("k"), r#"{"other":true}"#));
    let told = server
        .call_as(other.with_verify(&other_side), never())
        .await;
    assert_eq!(told, CONFLICT);
    assert_eq!(other_side.asked(), 0);
    assert_eq!(server.look("k").await, IN_DOUBT);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_dropped_while_the_function_asks_leaves_the_call_in_doubt() {
    let server = verifying(|_| {});
    server.leave_in_doubt("k").await;
    let other_side = OtherSide::new([Finding::Hangs, Finding::Says(committed("charged"))]);
    let first = server.start_verified("k", &other_side, never());
    until(|| other_side.asked() == 1).await;
    let waiting = server.start_verified("k", &other_side, never());
    until(|| server.engine.waiting() == 1).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    // Who waited has its turn, and asks.
    assert_eq!(waiting.await.unwrap(), replayed("charged"));
    assert_eq!((server.executions(), other_side.asked()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_caller_alone_leaves_the_call_in_doubt_at_once() {
    let server = verifying(|_| {});
    server.leave_in_doubt("k").await;
    let other_side = OtherSide::new([Finding::Hangs]);
    let first = server.start_verified("k", &other_side, never());
    until(|| other_side.asked() == 1).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    settle().await;
    let since = Instant::now();
    assert_eq!(server.look("k").await, IN_DOUBT);
    assert_eq!(since.elapsed(), seconds(0));
}

#[tokio::test(start_paused = true)]
async fn of_64_duplicates_over_two_processes_one_asks() {
    for (verdict, executions) in [(committed("two"), 0), (Verdict::NotCommitted, 1)] {
        let server = verifying(|_| {});
        server.leave_in_doubt("k").await;
        let elsewhere = elsewhere(&server);
        let other_side = OtherSide::new([Finding::SaysAfter(5, verdict)]);
        let calls: Vec<_> = (0..64)
            .map(|number| {
                let server = if number % 2 == 0 { &server } else { &elsewhere };
                server.start_verified("k", &other_side, succeed("two"))
            })
            .collect();
        for call in calls {
            let answer = call.await.unwrap();
            assert!(
                [own("two"), joined("two"), replayed("two")].contains(&answer),
                "{answer:?}"
            );
        }
        assert_eq!(other_side.asked(), 1);
        assert_eq!(server.executions() + elsewhere.executions(), 1 + executions);
    }
}

#[tokio::test(start_paused = true)]
async fn a_function_that_takes_longer_than_the_lease_keeps_it() {
    let server = verifying(|policy| {
        policy.lease = seconds(30);
        policy.verify_timeout = seconds(600);
    });
    server.leave_in_doubt("k").await;
    let other_side = OtherSide::new([Finding::SaysAfter(500, committed("charged"))]);
    assert_eq!(
        server.verified("k", &other_side, never()).await,
        replayed("charged")
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_function_a_call_in_doubt_is_refused_as_under_fail() {
    let server = verifying(|_| {});
    server.leave_in_doubt("k").await;
    assert_eq!(server.call("k", never()).await, IN_DOUBT);
    // The function belongs to one policy alone.
    let other_side = OtherSide::default();
    let strict = server.under(|policy| policy.on_doubt = OnDoubt::Fail);
    assert_eq!(strict.verified("k", &other_side, never()).await, IN_DOUBT);
    assert_eq!(other_side.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_committed_and_is_not_run_after_all_frees_the_key() {
    // Dropped before its handler started, or not executed.
    for dropped in [true, false] {
        let server = verifying(|_| {});
        server.leave_in_doubt("k").await;
        let other_side = OtherSide::new([Finding::Says(Verdict::NotCommitted)]);
        if dropped {
            let request = server.request(server.identity(Some("k"), "{}"));
            let begun = server
                .engine
                .begin_lease(request.with_verify(&other_side))
                .await;
            assert!(matches!(begun, Begun::Attempt(_)));
            drop(begun);
            settle().await;
        } else {
            let no = ends(ResultKind::NotExecuted, "no");
            assert_eq!(server.verified("k", &other_side, no).await, own("no"));
        }
        assert_eq!(server.call("k", succeed("two")).await, own("two"));
        assert_eq!(other_side.asked(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_not_committed_and_then_leaves_doubt_is_in_doubt() {
    let server = verifying(|_| {});
    server.leave_in_doubt("k").await;
    let other_side = OtherSide::new([Finding::Says(Verdict::NotCommitted)]);
    let fails = ends(ResultKind::ProtocolError, "timed out");
    let ran = server.verified("k", &other_side, fails).await;
    assert_eq!(ran, in_doubt_until_retried("timed out"));
    assert_eq!(server.look("k").await, IN_DOUBT);
}
