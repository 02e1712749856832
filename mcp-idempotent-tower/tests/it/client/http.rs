//! Over real HTTP, with rmcp's own client and server.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes, to_bytes},
    http::{Request, StatusCode, header},
    middleware::{Next, from_fn},
    response::{IntoResponse as _, Response},
};
use mcp_idempotent_tower::client::{Attempt, Call, CallErrorKind, RetryPolicy, replayed_at};
use rmcp::{
    ServiceExt as _,
    model::{CallToolRequestParams, CallToolResponse},
    transport::{
        StreamableHttpClientTransport, StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_client::StreamableHttpClientTransportConfig,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use tokio::runtime::Runtime;

use super::{Client, server::Server};

/// What becomes of the next tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The tool runs, and the stream of the answer ends without it.
    LosesTheAnswer,
    /// Refused before the server proper sees it.
    Busy,
}

/// A server on a port of its own, in a runtime of its own.
struct Site {
    address: SocketAddr,
    sessions: Arc<LocalSessionManager>,
    faults: Arc<Mutex<Vec<Fault>>>,
    calls: Arc<AtomicU32>,
    runtime: Option<Runtime>,
}

impl Site {
    fn start(server: &Server) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut site = Self {
            address: listener.local_addr().unwrap(),
            sessions: Arc::default(),
            faults: Arc::default(),
            calls: Arc::default(),
            runtime: None,
        };
        let server = server.clone();
        let service = StreamableHttpService::new(
            move || Ok(server.clone()),
            site.sessions.clone(),
            StreamableHttpServerConfig::default(),
        );
        let (faults, calls) = (site.faults.clone(), site.calls.clone());
        let app =
            axum::Router::new()
                .fallback_service(service)
                .layer(from_fn(move |request, next| {
                    intercept(faults.clone(), calls.clone(), request, next)
                }));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, app).await.unwrap();
        });
        site.runtime = Some(runtime);
        site
    }

    /// The next tool call meets this.
    fn with_fault(self, fault: Fault) -> Self {
        self.faults.lock().unwrap().push(fault);
        self
    }

    /// All sessions are gone, as after a restart.
    async fn forget_sessions(&self) {
        self.sessions.sessions.write().await.clear();
    }

    /// How many tool calls reached this address.
    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Connects; a session that is gone is left to the caller.
    async fn connect(&self) -> Client {
        let config =
            StreamableHttpClientTransportConfig::with_uri(format!("http://{}/", self.address))
                .reinit_on_expired_session(false);
        // No connection is kept for the next request: whether one that the server has closed takes
        // a request before that is noticed is a race.
        let http = reqwest::Client::builder().pool_max_idle_per_host(0);
        let transport = StreamableHttpClientTransport::with_client(http.build().unwrap(), config);
        ().serve(transport).await.unwrap()
    }

    /// Ends the server and all its connections.
    async fn stop(mut self) {
        let runtime = self.runtime.take().unwrap();
        let wait = || runtime.shutdown_timeout(Duration::from_secs(60));
        tokio::task::spawn_blocking(wait).await.unwrap();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn intercept(
    faults: Arc<Mutex<Vec<Fault>>>,
    calls: Arc<AtomicU32>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    let body: Bytes = to_bytes(body, usize::MAX).await.unwrap();
    let is_call = String::from_utf8_lossy(&body).contains("tools/call");
    let request = Request::from_parts(parts, body.into());
    if !is_call {
        return next.run(request).await;
    }
    calls.fetch_add(1, Ordering::SeqCst);
    let fault = faults.lock().unwrap().pop();
    match fault {
        None => next.run(request).await,
        Some(Fault::Busy) => (
            StatusCode::SERVICE_UNAVAILABLE,
            [(header::RETRY_AFTER, "0")],
        )
            .into_response(),
        Some(Fault::LosesTheAnswer) => {
            let response = next.run(request).await;
            assert_eq!(response.status(), StatusCode::OK);
            // Read to its end: the tool has run.
            to_bytes(response.into_body(), usize::MAX).await.unwrap();
            ([(header::CONTENT_TYPE, "text/event-stream")], "").into_response()
        }
    }
}

fn policy() -> RetryPolicy {
    RetryPolicy::new()
        .with_attempts(3)
        .with_pauses(Duration::from_millis(1), Duration::from_millis(1))
}

fn unkeyed() -> Call {
    Call::unkeyed(CallToolRequestParams::new("unprotected"))
}

#[tokio::test]
async fn an_answer_lost_by_http_is_fetched_with_the_same_key() {
    let server = Server::new();
    let site = Site::start(&server).with_fault(Fault::LosesTheAnswer);
    let connect = |_: Attempt| async { Ok::<_, Infallible>(site.connect().await) };
    let call = Call::keyed(CallToolRequestParams::new("charge"));
    let answer = policy().call(connect, call).await;
    let CallToolResponse::Complete(result) = answer.unwrap() else {
        panic!("no result")
    };
    assert!(replayed_at(&result).is_some());
    assert_eq!((server.runs(), site.calls()), (1, 2));
}

#[tokio::test]
async fn a_call_without_a_key_whose_stream_ended_may_have_run_and_is_not_repeated() {
    let server = Server::new();
    let site = Site::start(&server).with_fault(Fault::LosesTheAnswer);
    let client = site.connect().await;
    let error = policy().call(client.peer(), unkeyed()).await.unwrap_err();
    assert_eq!(error.kind(), CallErrorKind::MayHaveRun);
    assert_eq!((server.runs(), site.calls()), (1, 1));
}

#[tokio::test]
async fn a_call_without_a_key_on_a_session_that_is_gone_is_repeated() {
    let server = Server::new();
    let site = Site::start(&server);
    let old = Arc::new(site.connect().await);
    site.forget_sessions().await;
    let (old, site) = (&old, &site);
    let connect = move |attempt: Attempt| async move {
        Ok::<_, Infallible>(match attempt.number() {
            1 => old.clone(),
            _ => Arc::new(site.connect().await),
        })
    };
    policy().call(connect, unkeyed()).await.unwrap();
    assert_eq!((server.runs(), site.calls()), (1, 2));
}

#[tokio::test]
async fn a_call_on_a_session_that_is_gone_was_not_run() {
    let server = Server::new();
    let site = Site::start(&server);
    let client = site.connect().await;
    site.forget_sessions().await;
    let error = policy().call(client.peer(), unkeyed()).await.unwrap_err();
    assert_eq!(error.kind(), CallErrorKind::NotRun);
    assert_eq!((server.runs(), site.calls()), (0, 3));
}

#[tokio::test]
async fn a_call_to_an_address_where_nobody_listens_was_not_run() {
    let server = Server::new();
    let site = Site::start(&server);
    let client = site.connect().await;
    site.stop().await;
    let error = policy().call(client.peer(), unkeyed()).await.unwrap_err();
    assert_eq!(error.kind(), CallErrorKind::NotRun);
    assert!(!error.may_have_run());
    assert_eq!(server.runs(), 0);
}

#[tokio::test]
async fn a_busy_gateway_proves_nothing_and_says_when_to_come_back() {
    let server = Server::new();
    let site = Site::start(&server).with_fault(Fault::Busy);
    let client = site.connect().await;
    let error = policy().call(client.peer(), unkeyed()).await.unwrap_err();
    assert_eq!(error.kind(), CallErrorKind::MayHaveRun);
    assert_eq!(site.calls(), 1);

    let site = site.with_fault(Fault::Busy);
    let call = Call::keyed(CallToolRequestParams::new("charge"));
    let an_hour = Duration::from_secs(3_600);
    let started = Instant::now();
    let policy = RetryPolicy::new()
        .with_total_timeout(2 * an_hour)
        .with_pauses(an_hour, an_hour);
    tokio::time::timeout(Duration::from_secs(60), policy.call(client.peer(), call))
        .await
        .unwrap()
        .unwrap();
    assert!(started.elapsed() < Duration::from_secs(60));
    assert_eq!((server.runs(), site.calls()), (1, 3));
}
