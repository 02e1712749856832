use std::time::Duration;

use mcp_idempotent_core::{OnError, OnExpired, ResultKind};

use super::{Outcome, Reply, Server, in_doubt, own, replayed, succeed};

const IN_DOUBT: Outcome =
    Outcome::Refused("idempotency_outcome_unknown", "unknown", "ask_operator");

#[tokio::test]
async fn a_retry_gets_the_first_result() {
    let server = Server::new(|_| {});
    assert_eq!(server.call("k", succeed("one")).await, own("one"));
    assert_eq!(server.call("k", succeed("two")).await, replayed("one"));
    assert_eq!(server.call("other", succeed("three")).await, own("three"));
    assert_eq!(server.executions(), 2);
}

#[tokio::test]
async fn an_equal_call_without_a_key_is_a_retry_within_the_window_only() {
    tokio::time::pause();
    let server = Server::new(|policy| policy.window = Duration::from_secs(60));
    let unkeyed = || server.request(server.identity(None, r#"{"a":1,"b":2}"#));
    let respelled = || server.request(server.identity(None, r#"{ "b": 2, "a": 1.0 }"#));
    assert_eq!(server.call_as(unkeyed(), succeed("one")).await, own("one"));
    assert_eq!(
        server.call_as(respelled(), succeed("two")).await,
        replayed("one")
    );
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(
        server.call_as(unkeyed(), succeed("three")).await,
        own("three")
    );
}

#[tokio::test]
async fn the_window_starts_when_the_handler_ends() {
    tokio::time::pause();
    let server = Server::new(|policy| policy.retention = Duration::from_secs(10));
    let slow = async {
        tokio::time::advance(Duration::from_secs(60)).await;
        Reply::new(ResultKind::Success, "slow")
    };
    assert_eq!(server.call("k", slow).await, own("slow"));
    tokio::time::advance(Duration::from_secs(9)).await;
    assert_eq!(server.call("k", succeed("again")).await, replayed("slow"));
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(server.call("k", succeed("anew")).await, own("anew"));
}

#[tokio::test]
async fn an_expired_key_is_refused_where_the_policy_says_so() {
    tokio::time::pause();
    let server = Server::new(|policy| {
        policy.retention = Duration::from_secs(10);
        policy.on_expired = OnExpired::Refuse;
    });
    assert_eq!(server.call("k", succeed("one")).await, own("one"));
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(
        server.call("k", succeed("two")).await,
        Outcome::Refused("idempotency_key_expired", "unknown", "use_new_key")
    );
}

#[tokio::test]
async fn another_call_under_the_same_key_is_a_conflict_and_does_not_run() {
    let server = Server::new(|_| {});
    assert_eq!(server.call("k", succeed("one")).await, own("one"));
    let other = server.request(server.identity(Some("k"), r#"{"other":true}"#));
    assert_eq!(
        server.call_as(other, succeed("two")).await,
        Outcome::Refused("idempotency_key_conflict", "not_committed", "use_new_key")
    );
    assert_eq!(server.executions(), 1);
}

#[tokio::test]
async fn an_error_result_under_an_explicit_key_is_recorded() {
    let server = Server::new(|_| {});
    let failed = async { Reply::new(ResultKind::ErrorResult, "no such customer") };
    assert_eq!(server.call("k", failed).await, own("no such customer"));
    assert_eq!(
        server.call("k", succeed("two")).await,
        replayed("no such customer")
    );
}

#[tokio::test]
async fn a_protocol_error_means_what_the_author_says() {
    let fail = || async { Reply::new(ResultKind::ProtocolError, "timed out") };
    let doubtful = Server::new(|policy| policy.on_error = OnError::InDoubt);
    assert_eq!(doubtful.call("k", fail()).await, in_doubt("timed out"));
    assert_eq!(doubtful.call("k", succeed("two")).await, IN_DOUBT);
    assert_eq!(doubtful.executions(), 1);

    let releasing = Server::new(|policy| policy.on_error = OnError::Release);
    assert_eq!(releasing.call("k", fail()).await, own("timed out"));
    assert_eq!(releasing.call("k", succeed("two")).await, own("two"));
}

#[tokio::test]
async fn what_proves_that_nothing_happened_frees_the_key() {
    for kind in [
        ResultKind::NotExecuted,
        ResultKind::NotCalled,
        ResultKind::InputRequired,
    ] {
        let server = Server::new(|policy| policy.on_error = OnError::InDoubt);
        let first = async { Reply::new(kind, "nothing") };
        assert_eq!(server.call("k", first).await, own("nothing"), "{kind:?}");
        assert_eq!(
            server.call("k", succeed("two")).await,
            own("two"),
            "{kind:?}"
        );
    }
}

#[tokio::test]
async fn a_panic_leaves_the_outcome_unknown() {
    let server = Server::new(|policy| policy.on_error = OnError::Release);
    let panicking = async { panic!("a test's handler") };
    assert_eq!(server.call("k", panicking).await, in_doubt("panicked"));
    assert_eq!(server.call("k", succeed("two")).await, IN_DOUBT);
}

#[tokio::test]
async fn a_handler_that_is_dropped_leaves_the_outcome_unknown() {
    let server = Server::new(|_| {});
    let call = {
        let server = server.clone();
        tokio::spawn(async move { server.call("k", std::future::pending()).await })
    };
    super::until(|| server.executions() == 1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    // Beside the record that says that the application has no secret.
    super::until(|| server.engine.store().len() == 2).await;
    // The attempt is given up by a task of its own; until then a duplicate waits.
    assert_eq!(server.call("k", succeed("two")).await, IN_DOUBT);
    assert_eq!(server.executions(), 1);
}

#[tokio::test]
async fn a_call_dropped_before_its_handler_ran_leaves_the_key_free() {
    let server = Server::new(|_| {});
    let begun = server
        .engine
        .begin_lease(server.request(server.identity(Some("k"), "{}")))
        .await;
    drop(begun);
    // What is left says that the application has no secret.
    super::until(|| server.engine.store().len() == 1).await;
    assert_eq!(server.call("k", succeed("two")).await, own("two"));
}

#[tokio::test]
async fn a_handler_that_outlives_its_lease_is_told_and_stays_in_doubt() {
    tokio::time::pause();
    let server = Server::new(|policy| policy.lease = Duration::from_secs(5));
    let slow = async {
        tokio::time::advance(Duration::from_secs(6)).await;
        Reply::new(ResultKind::Success, "late")
    };
    assert_eq!(server.call("k", slow).await, IN_DOUBT);
    assert_eq!(server.call("k", succeed("two")).await, IN_DOUBT);
}

#[tokio::test]
async fn a_result_too_large_to_keep_reaches_its_caller_and_is_not_run_again() {
    let server = Server::new(|policy| policy.max_result_bytes = 3);
    assert_eq!(server.call("k", succeed("four")).await, own("four"));
    assert_eq!(
        server.call("k", succeed("two")).await,
        Outcome::Refused("idempotency_result_too_large", "committed", "ask_operator")
    );
    assert_eq!(server.call("small", succeed("abc")).await, own("abc"));
    assert_eq!(server.call("small", succeed("two")).await, replayed("abc"));
}
