use std::{sync::atomic::Ordering, time::Duration};

use mcp_idempotent_core::{Engine, MemoryStore, ResultKind, Wait};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{Outcome, Reply, Server, joined, own, replayed, succeed, until};

const RETRY: Outcome = Outcome::Refused("idempotency_outcome_unknown", "unknown", "retry_same_key");
const WAIT: Outcome = Outcome::Refused("idempotency_key_in_progress", "unknown", "wait");

/// A call whose handler runs until it is told to end.
struct Running {
    call: JoinHandle<Outcome>,
    end: oneshot::Sender<Reply>,
}

impl Running {
    /// Starts it, and waits until its handler runs.
    async fn start(server: &Server, key: &'static str) -> Self {
        let (end, ended) = oneshot::channel();
        let before = server.executions();
        let call = tokio::spawn({
            let server = server.clone();
            async move { server.call(key, async move { ended.await.unwrap() }).await }
        });
        until(|| server.executions() > before).await;
        Self { call, end }
    }

    /// Its handler ends so; what its caller is answered.
    async fn end(self, kind: ResultKind, text: &str) -> Outcome {
        self.end.send(Reply::new(kind, text)).ok().unwrap();
        self.call.await.unwrap()
    }
}

/// Starts a call that is expected to wait.
fn follow(server: &Server, key: &'static str, text: &'static str) -> JoinHandle<Outcome> {
    let server = server.clone();
    tokio::spawn(async move { server.call(key, succeed(text)).await })
}

#[tokio::test]
async fn duplicates_wait_for_the_first_and_get_its_result() {
    let server = Server::new(|_| {});
    let first = Running::start(&server, "k").await;
    let others: Vec<_> = (0..63).map(|_| follow(&server, "k", "other")).collect();
    until(|| server.engine.waiting() == 63).await;
    assert_eq!(
        server.call("another-key", succeed("at once")).await,
        own("at once")
    );
    assert_eq!(first.end(ResultKind::Success, "one").await, own("one"));
    for other in others {
        assert_eq!(other.await.unwrap(), joined("one"));
    }
    assert_eq!(server.executions(), 2);
    assert_eq!(server.engine.waiting(), 0);
}

#[tokio::test]
async fn those_who_join_get_the_full_result_also_where_it_is_too_large_to_keep() {
    let server = Server::new(|policy| policy.max_result_bytes = 3);
    let first = Running::start(&server, "k").await;
    let other = follow(&server, "k", "other");
    until(|| server.engine.waiting() == 1).await;
    assert_eq!(first.end(ResultKind::Success, "four").await, own("four"));
    assert_eq!(other.await.unwrap(), joined("four"));
}

#[tokio::test]
async fn another_call_under_a_running_key_is_a_conflict_at_once() {
    let server = Server::new(|_| {});
    let first = Running::start(&server, "k").await;
    let other = server.request(server.identity(Some("k"), r#"{"other":true}"#));
    assert_eq!(
        server.call_as(other, succeed("other")).await,
        Outcome::Refused("idempotency_key_conflict", "not_committed", "use_new_key")
    );
    assert_eq!(first.end(ResultKind::Success, "one").await, own("one"));
}

#[tokio::test]
async fn a_caller_that_does_not_wait_is_answered_at_once() {
    let server = Server::new(|policy| policy.wait = Wait::Reject);
    let first = Running::start(&server, "k").await;
    assert_eq!(server.call("k", succeed("other")).await, WAIT);
    assert_eq!(first.end(ResultKind::Success, "one").await, own("one"));
    assert_eq!(server.call("k", succeed("other")).await, replayed("one"));
}

#[tokio::test]
async fn a_wait_ends_at_its_bound() {
    tokio::time::pause();
    let server = Server::new(|policy| policy.wait = Wait::UpTo(Duration::from_secs(3)));
    let _first = Running::start(&server, "k").await;
    let before = tokio::time::Instant::now();
    assert_eq!(server.call("k", succeed("other")).await, WAIT);
    assert_eq!(before.elapsed().as_secs(), 3);
    assert_eq!(server.engine.waiting(), 0);
}

#[tokio::test]
async fn an_attempt_without_a_record_answers_its_own_caller_and_wakes_one_twice_in_a_row() {
    let server = Server::new(|_| {});
    let first = Running::start(&server, "k").await;
    let failing: Vec<_> = (0..5)
        .map(|_| {
            let server = server.clone();
            tokio::spawn(async move {
                let nothing = async { Reply::new(ResultKind::NotExecuted, "nothing") };
                server.call("k", nothing).await
            })
        })
        .collect();
    until(|| server.engine.waiting() == 5).await;
    assert_eq!(
        first.end(ResultKind::NotExecuted, "nothing").await,
        own("nothing")
    );
    let mut answers = Vec::new();
    for call in failing {
        answers.push(call.await.unwrap());
    }
    assert_eq!(
        answers
            .iter()
            .filter(|answer| **answer == own("nothing"))
            .count(),
        2
    );
    assert_eq!(answers.iter().filter(|answer| **answer == RETRY).count(), 3);
    assert_eq!(server.executions(), 3);
    // The next one starts afresh.
    assert_eq!(server.call("k", succeed("new")).await, own("new"));
}

#[tokio::test]
async fn the_first_callers_fate_does_not_touch_those_who_wait() {
    let server = Server::new(|_| {});
    let begun = server
        .engine
        .begin_lease(server.request(server.identity(Some("k"), "{}")))
        .await;
    let other = follow(&server, "k", "other");
    until(|| server.engine.waiting() == 1).await;
    drop(begun);
    assert_eq!(other.await.unwrap(), own("other"));
}

#[tokio::test]
async fn a_waiter_that_left_is_passed_over() {
    let server = Server::new(|_| {});
    let first = Running::start(&server, "k").await;
    let leaving = follow(&server, "k", "leaving");
    until(|| server.engine.waiting() == 1).await;
    let staying = follow(&server, "k", "staying");
    until(|| server.engine.waiting() == 2).await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    assert_eq!(
        first.end(ResultKind::NotExecuted, "nothing").await,
        own("nothing")
    );
    assert_eq!(staying.await.unwrap(), own("staying"));
}

#[tokio::test]
async fn no_more_calls_wait_than_the_limits_allow() {
    let mut server = Server::new(|_| {});
    server.engine = Engine::builder("tests", MemoryStore::new())
        .with_waiter_limits(2, 3)
        .build();
    let first = Running::start(&server, "k").await;
    let second = Running::start(&server, "l").await;
    let waiting = [follow(&server, "k", "w"), follow(&server, "k", "w")];
    until(|| server.engine.waiting() == 2).await;
    let full = Outcome::Refused("idempotency_too_many_waiting", "unknown", "wait");
    assert_eq!(server.call("k", succeed("w")).await, full);
    let third = follow(&server, "l", "w");
    until(|| server.engine.waiting() == 3).await;
    assert_eq!(server.call("l", succeed("w")).await, full);
    for call in [first, second] {
        assert_eq!(call.end(ResultKind::Success, "one").await, own("one"));
    }
    for call in waiting.into_iter().chain([third]) {
        assert_eq!(call.await.unwrap(), joined("one"));
    }
}

#[tokio::test]
async fn a_thousand_waiters_on_one_key_are_answered() {
    let server = Server::new(|_| {});
    let first = Running::start(&server, "k").await;
    let others: Vec<_> = (0..1000).map(|_| follow(&server, "k", "other")).collect();
    until(|| server.engine.waiting() == 1000).await;
    assert_eq!(first.end(ResultKind::Success, "one").await, own("one"));
    for other in others {
        assert_eq!(other.await.unwrap(), joined("one"));
    }
}

#[tokio::test]
async fn calls_of_one_round_join_and_calls_of_another_have_their_turn() {
    let server = Server::new(|_| {});
    let first = Running::start(&server, "k").await;
    let same_round = follow(&server, "k", "never");
    until(|| server.engine.waiting() == 1).await;
    let next_round = {
        let server = server.clone();
        tokio::spawn(async move {
            let request = server
                .request(server.identity(Some("k"), "{}"))
                .with_round(Some([7; 32]));
            server.call_as(request, succeed("final")).await
        })
    };
    until(|| server.engine.waiting() == 2).await;
    assert_eq!(
        first.end(ResultKind::InputRequired, "which card?").await,
        own("which card?")
    );
    assert_eq!(same_round.await.unwrap(), joined("which card?"));
    assert_eq!(next_round.await.unwrap(), own("final"));
    // Once there is a final record, every round gets it.
    assert_eq!(server.call("k", succeed("again")).await, replayed("final"));
    assert_eq!(server.executions(), 2);
}

#[tokio::test]
async fn a_call_from_inside_its_own_handler_is_refused_at_once() {
    let server = Server::new(|_| {});
    let inner = server.clone();
    let nested = async move {
        let answer = inner.call("k", succeed("never")).await;
        let expected = Outcome::Refused(
            "idempotency_key_in_progress",
            "not_committed",
            "use_new_key",
        );
        assert_eq!(answer, expected);
        assert_eq!(
            inner.call("another", succeed("nested")).await,
            own("nested")
        );
        Reply::new(ResultKind::Success, "outer")
    };
    assert_eq!(server.call("k", nested).await, own("outer"));
    assert_eq!(server.executions.load(Ordering::SeqCst), 2);
}
