//! What bounds a call, and what ends it early.

use std::{future::Future, time::Duration};

use mcp_idempotent_tower::{
    IdempotencyKey,
    client::{Call, CallErrorKind, RetryPolicy, WithIdempotencyKey as _},
    core::ErrorKind,
};
use rmcp::model::CallToolRequestParams;
use tokio::time::Instant;

use super::{
    link::{Fault, Sent, connector},
    server::Server,
};

fn tool(name: &'static str) -> CallToolRequestParams {
    CallToolRequestParams::new(name)
}

/// Bounds a wait; the time is paused.
async fn within_a_minute<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future)
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_takes_too_long_is_given_up_and_repeated() {
    let (server, sent) = (Server::new(), Sent::default());
    let call = Call::unkeyed(tool("stuck")).with_repeats_assumed_safe();
    let policy = RetryPolicy::new()
        .with_attempt_timeout(Duration::from_secs(3))
        .with_attempts(2);
    let started = Instant::now();
    let error = policy
        .call(connector(&server, [], &sent), call)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), CallErrorKind::MayHaveRun);
    assert_eq!(error.attempts(), 2);
    assert_eq!(server.runs(), 2);
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_secs(6), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(7), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_takes_too_long_is_cancelled_on_a_connection_that_stays() {
    let server = Server::new();
    let client = super::connect(server.clone()).await;
    let policy = RetryPolicy::new().with_attempt_timeout(Duration::from_secs(3));
    let call = Call::unkeyed(tool("stuck"));
    let error = policy.call(client.peer(), call).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.attempts()),
        (CallErrorKind::MayHaveRun, 1)
    );
    within_a_minute(server.cancelled()).await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_cancels_the_call() {
    let server = Server::new();
    let client = super::connect(server.clone()).await;
    let peer = client.peer().clone();
    let call = tokio::spawn(async move {
        let call = Call::unkeyed(tool("stuck"));
        RetryPolicy::new().call(&peer, call).await
    });
    while server.runs() == 0 {
        tokio::task::yield_now().await;
    }
    call.abort();
    within_a_minute(server.cancelled()).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_does_not_fit_the_time_is_not_begun() {
    let server = Server::new();
    let params = tool("slow").with_idempotency_key(&IdempotencyKey::new("slow").unwrap());
    let client = super::connect(server.clone()).await;
    let peer = client.peer().clone();
    let first = tokio::spawn({
        let params = params.clone();
        async move { peer.call_tool(params).await }
    });
    while server.runs() == 0 {
        tokio::task::yield_now().await;
    }
    let started = Instant::now();
    let policy = RetryPolicy::new().with_total_timeout(Duration::from_millis(900));
    let error = policy
        .call(client.peer(), Call::keyed(params))
        .await
        .unwrap_err();
    assert!(error.refusal().unwrap().is(ErrorKind::KeyInProgress));
    assert!(error.may_have_run());
    assert_eq!(started.elapsed(), Duration::ZERO);
    first.abort();
}

#[tokio::test(start_paused = true)]
async fn all_attempts_and_pauses_fit_the_time_for_them() {
    let (server, sent) = (Server::new(), Sent::default());
    let connect = connector(&server, [Fault::KeepsTheAnswer; 100], &sent);
    let policy = RetryPolicy::new()
        .with_attempts(u32::MAX)
        .with_attempt_timeout(Duration::from_secs(4))
        .with_total_timeout(Duration::from_secs(10));
    let started = Instant::now();
    let error = policy
        .call(connect, Call::keyed(tool("charge")))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), CallErrorKind::MayHaveRun);
    let elapsed = started.elapsed();
    assert!(elapsed > Duration::from_secs(9), "{elapsed:?}");
    assert!(elapsed <= Duration::from_millis(10_010), "{elapsed:?}");
    assert_eq!(server.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn bounds_without_end_are_no_overflow() {
    let (server, sent) = (Server::new(), Sent::default());
    let policy = RetryPolicy::new()
        .with_attempts(u32::MAX)
        .with_attempt_timeout(Duration::MAX)
        .with_total_timeout(Duration::MAX)
        .with_pauses(Duration::MAX, Duration::from_secs(1));
    let connect = connector(&server, [Fault::LosesTheAnswer; 40], &sent);
    policy
        .call(connect, Call::keyed(tool("charge")))
        .await
        .unwrap();
    assert_eq!(server.runs(), 1);
}
