//! tower's own layers, above and below, unadapted.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use mcp_idempotent_tower::{OnError, ServerExt as _, ToolCall, ToolService, layer::Rule};
use rmcp::model::{CallToolResponse, CallToolResult};
use serde_json::Value;
use tower::{
    BoxError, Layer, Service, ServiceBuilder,
    buffer::BufferLayer,
    layer::layer_fn,
    limit::{ConcurrencyLimitLayer, RateLimitLayer},
    load_shed::LoadShedLayer,
    timeout::TimeoutLayer,
    util::{BoxCloneSyncService, MapRequestLayer},
};

use super::{Mailer, hello, key, layer, lease, number, refusal, send, slowly, until};
use crate::client::{call, connect, params};

const LONG: Duration = Duration::from_secs(60);

/// Two keyed calls and a retry.
async fn serves_and_deduplicates(server: impl rmcp::ServerHandler) {
    let client = connect(server).await;
    assert_eq!(send(&client, key("a")).await, 1);
    assert_eq!(send(&client, key("b")).await, 2);
    assert_eq!(send(&client, key("a")).await, 1);
}

#[tokio::test]
async fn towers_layers_stand_below() {
    serves_and_deduplicates(
        Mailer::new()
            .layered(TimeoutLayer::new(LONG))
            .layered(ConcurrencyLimitLayer::new(1))
            .layered(LoadShedLayer::new())
            .layered(BufferLayer::new(8))
            .layered(MapRequestLayer::new(|call: ToolCall| call))
            .idempotent(layer(lease())),
    )
    .await;
}

#[tokio::test]
async fn towers_layers_stand_above() {
    serves_and_deduplicates(
        Mailer::new()
            .idempotent(layer(lease()))
            .layered(MapRequestLayer::new(|call: ToolCall| call))
            .layered(BufferLayer::new(8))
            .layered(ConcurrencyLimitLayer::new(1))
            .layered(LoadShedLayer::new())
            .layered(TimeoutLayer::new(LONG)),
    )
    .await;
}

#[tokio::test]
async fn a_whole_stack_is_one_layer() {
    serves_and_deduplicates(
        Mailer::new().layered(
            ServiceBuilder::new()
                .load_shed()
                .timeout(LONG)
                .layer(layer(lease()))
                .layer(layer_fn(BoxCloneSyncService::new))
                .map_request(|call: ToolCall| call)
                .buffer(8)
                .concurrency_limit(1)
                .rate_limit(100, LONG),
        ),
    )
    .await;
}

#[tokio::test]
async fn a_service_that_is_not_clone_is_served_through_a_buffer() {
    serves_and_deduplicates(
        Mailer::new()
            .layered(
                ServiceBuilder::new()
                    .layer(BufferLayer::new(8))
                    .layer(RateLimitLayer::new(100, LONG)),
            )
            .idempotent(layer(lease())),
    )
    .await;
}

#[test]
fn every_part_is_send_and_sync() {
    fn is<T: Send + Sync + 'static>(_: &T) {}
    fn is_service<T: ToolService>(_: &T) {}
    let layer = layer(lease());
    is(&layer);
    let server = Mailer::new().idempotent(layer.clone());
    is(&server);
    is_service(&layer.layer(Probe::default()));
}

/// Panics when it is called without having been made ready, and forgets readiness when cloned.
#[derive(Debug, Default)]
struct Probe {
    is_ready: bool,
    polled: bool,
    calls: Arc<AtomicU32>,
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        Self {
            is_ready: false,
            polled: false,
            calls: Arc::clone(&self.calls),
        }
    }
}

impl Service<ToolCall> for Probe {
    type Response = CallToolResponse;
    type Error = Infallible;
    type Future = Ready<Result<CallToolResponse, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if !self.polled {
            self.polled = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: ToolCall) -> Self::Future {
        assert!(self.is_ready, "called before it was ready");
        self.is_ready = false;
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let result = CallToolResult::structured(serde_json::json!({ "number": call }));
        ready(Ok(result.into()))
    }
}

#[tokio::test]
async fn the_service_below_is_called_only_when_it_is_ready() {
    let probe = Probe::default();
    let calls = Arc::clone(&probe.calls);
    let answering = layer_fn(move |_| probe.clone());
    // Directly below the layer, and alone.
    serves_and_deduplicates(
        Mailer::new()
            .layered(answering.clone())
            .idempotent(layer(lease())),
    )
    .await;
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let client = connect(
        Mailer::new().layered(ServiceBuilder::new().layer(layer(lease())).layer(answering)),
    )
    .await;
    assert_eq!(send(&client, key("a")).await, 3);
    assert_eq!(send(&client, key("a")).await, 3);
}

#[tokio::test]
async fn waiting_duplicates_hold_no_permit_of_a_limit_below() {
    let server = Mailer::new()
        .layered(ConcurrencyLimitLayer::new(2))
        .idempotent(layer(lease()));
    let mailer = server.handler().clone();
    let client = Arc::new(connect(server).await);
    let slow: Vec<_> = (0..5).map(|_| slowly(&client, key("slow"))).collect();
    until("began", || mailer.sent() == 1).await;
    // One permit is the running call's. Were one of the four waiting, this would hang.
    for n in 0..10u32 {
        let client = Arc::clone(&client);
        let key = key(&format!("fast {n}").replace(' ', "-"));
        tokio::time::timeout(LONG, async move { send(&client, key).await })
            .await
            .unwrap();
    }
    mailer.go_on.add_permits(1);
    for slow in slow {
        assert_eq!(number(&slow.await.unwrap()), 1);
    }
}

#[tokio::test]
async fn waiting_duplicates_hold_the_permits_of_a_limit_above() {
    let idempotency = super::idempotency();
    let layer = mcp_idempotent_tower::IdempotencyLayer::new(idempotency.clone(), lease()).unwrap();
    // Why a limit of handlers belongs below: nothing else differs from the test before.
    let server = Mailer::new().idempotent(layer).layered(
        ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(ConcurrencyLimitLayer::new(2)),
    );
    let mailer = server.handler().clone();
    let client = Arc::new(connect(server).await);
    let slow: Vec<_> = (0..2).map(|_| slowly(&client, key("slow"))).collect();
    until("one waits", || idempotency.engine().waiting() == 1).await;
    let other = call(&client, params("send", hello(), key("other"))).await;
    assert_eq!(refusal(&other), ("server_overloaded", "not_committed"));
    mailer.go_on.add_permits(1);
    for slow in slow {
        assert_eq!(number(&slow.await.unwrap()), 1);
    }
    assert_eq!(send(&client, key("other")).await, 2);
}

#[tokio::test]
async fn load_shed_below_says_that_nothing_ran_and_frees_the_key() {
    let server = Mailer::new()
        .layered(
            ServiceBuilder::new()
                .layer(LoadShedLayer::new())
                .layer(ConcurrencyLimitLayer::new(1)),
        )
        .idempotent(layer(lease()));
    let mailer = server.handler().clone();
    let client = Arc::new(connect(server).await);
    let slow = slowly(&client, key("slow"));
    until("began", || mailer.sent() == 1).await;
    let shed = call(&client, params("send", hello(), key("k"))).await;
    assert_eq!(refusal(&shed), ("server_overloaded", "not_committed"));
    mailer.go_on.add_permits(1);
    assert_eq!(number(&slow.await.unwrap()), 1);
    // A replay needs no permit, and the key that was shed is free.
    assert_eq!(send(&client, key("k")).await, 2);
}

#[tokio::test]
async fn a_timeout_below_leaves_the_call_in_doubt_whatever_the_rule_says_of_errors() {
    let server = Mailer::new()
        .layered(TimeoutLayer::new(Duration::from_millis(20)))
        .idempotent(layer(Rule::lease(OnError::Release)));
    let client = connect(server).await;
    let answer = call(&client, params("send_slowly", hello(), key("k"))).await;
    assert_eq!(refusal(&answer), ("call_timed_out", "unknown"));
    let again = call(&client, params("send_slowly", hello(), key("k"))).await;
    assert_eq!(refusal(&again), ("idempotency_outcome_unknown", "unknown"));
}

/// Fails in a way of its own.
#[derive(Debug, Clone, Copy)]
enum Broken {
    BeforeItIsReady,
    WhenItIsCalled,
}

impl Service<ToolCall> for Broken {
    type Response = CallToolResponse;
    type Error = BoxError;
    type Future = Ready<Result<CallToolResponse, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(match self {
            Self::BeforeItIsReady => Err("secret words".into()),
            Self::WhenItIsCalled => Ok(()),
        })
    }

    fn call(&mut self, _: ToolCall) -> Self::Future {
        ready(Err("secret words".into()))
    }
}

#[tokio::test]
async fn errors_of_other_layers_say_whether_the_handler_ran() {
    for (broken, kind, outcome, again) in [
        (
            Broken::BeforeItIsReady,
            "call_not_executed",
            "not_committed",
            "call_not_executed",
        ),
        (
            Broken::WhenItIsCalled,
            "call_failed",
            "unknown",
            "idempotency_outcome_unknown",
        ),
    ] {
        let bare = connect(Mailer::new().layered(layer_fn(move |_| broken))).await;
        let answer = call(&bare, params("send", hello(), Value::Null)).await;
        assert_eq!(refusal(&answer), (kind, outcome));
        assert!(!answer.to_string().contains("secret"), "{answer}");

        let release = Rule::lease(OnError::Release);
        let server = Mailer::new().layered(layer_fn(move |_| broken));
        let client = connect(server.idempotent(layer(release))).await;
        let answer = call(&client, params("send", hello(), key("k"))).await;
        assert_eq!(refusal(&answer), (kind, outcome));
        let answer = call(&client, params("send", hello(), key("k"))).await;
        assert_eq!(refusal(&answer).0, again);
    }
}

#[tokio::test]
async fn load_shed_above_refuses_what_a_limit_between_refuses() {
    let server = Mailer::new().idempotent(layer(lease())).layered(
        ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(ConcurrencyLimitLayer::new(1)),
    );
    let mailer = server.handler().clone();
    let client = Arc::new(connect(server).await);
    let slow = slowly(&client, key("slow"));
    until("began", || mailer.sent() == 1).await;
    let shed = call(&client, params("send", hello(), Value::Null)).await;
    assert_eq!(refusal(&shed), ("server_overloaded", "not_committed"));
    mailer.go_on.add_permits(1);
    assert_eq!(number(&slow.await.unwrap()), 1);
}

/// Wraps a server without knowing that it is wrapped already.
fn wrapped<H: rmcp::ServerHandler>(server: H) -> impl rmcp::ServerHandler {
    server.idempotent(layer(Rule::lease(OnError::Release)))
}

#[tokio::test]
async fn a_timeout_in_a_server_that_was_wrapped_by_itself_leaves_the_call_in_doubt() {
    let server = Mailer::new().layered(TimeoutLayer::new(Duration::from_millis(20)));
    let client = connect(wrapped(server)).await;
    let answer = call(&client, params("send_slowly", hello(), key("k"))).await;
    assert_eq!(refusal(&answer), ("call_timed_out", "unknown"));
    let again = call(&client, params("send_slowly", hello(), key("k"))).await;
    assert_eq!(refusal(&again), ("idempotency_outcome_unknown", "unknown"));
}
