//! The proxy over HTTP.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request};
use http_body::{Body, Frame, SizeHint};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use mcp_idempotent_tower::{
    Idempotency, Store,
    relay::{
        Relay,
        http::{HttpRelay, WireBody, WireError},
    },
};
use tokio::{net::TcpListener, time::timeout};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};
use tower::{ServiceExt as _, service_fn};

use crate::{
    hosts::{self, Hosts},
    upstream::Upstream,
};

/// How long protected calls may go on after the proxy was told to end.
const DRAIN: Duration = Duration::from_secs(30);

/// How long connections may then take to write what is left and to close. Streams of clients that only listen
/// have no other end.
const CLOSING: Duration = Duration::from_secs(1);

/// Serves until the process is told to end.
///
/// # Errors
///
/// The address is taken, or is not this machine's. Or the server is reached over TLS, and this
/// machine trusts no certificates.
pub(crate) async fn serve<S: Store>(
    relay: Relay<S>,
    idempotency: &Idempotency<S>,
    listen: SocketAddr,
    hosts: Hosts,
    upstream: &Upstream,
) -> io::Result<()> {
    let unanswered = TaskTracker::new();
    let requests = unanswered.clone();
    let connections = GracefulShutdown::new();
    let relay = HttpRelay::new(relay, upstream.authority().clone(), upstream.client()?);
    let service = TowerToHyperService::new(service_fn(move |request: Request<Incoming>| {
        let is_allowed = hosts.allow(&request);
        let relay = relay.clone();
        // Until its answer is written. A client that only listens with GET is not waited for.
        let unanswered = (request.method() == Method::POST).then(|| requests.token());
        async move {
            let response = if is_allowed {
                relay.oneshot(request).await?
            } else {
                hosts::refused()
            };
            Ok::<_, Infallible>(response.map(|body| Answer {
                body,
                _unanswered: unanswered,
            }))
        }
    }));
    let bound = TcpListener::bind(listen).await;
    let listener = bound.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen at {listen}: {error}"))
    })?;
    tracing::info!(address = %listener.local_addr()?, "listening");
    let mut told_to_end = std::pin::pin!(told_to_end());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut told_to_end => break,
        };
        let Ok((stream, _)) = accepted else {
            // Out of file descriptors, for instance. It passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // Answers are small, and nobody should wait for the next one to fill a packet.
        let _ = stream.set_nodelay(true);
        let service = service.clone();
        let watcher = connections.watcher();
        tokio::spawn(async move {
            let mut connection = http1::Builder::new();
            connection.timer(TokioTimer::new());
            let served = connection.serve_connection(TokioIo::new(stream), service);
            if let Err(error) = watcher.watch(served).await {
                tracing::debug!(%error, "a connection broke off");
            }
        });
    }
    drop(listener);
    unanswered.close();
    let answered = timeout(DRAIN, unanswered.wait());
    let _ = tokio::join!(idempotency.shutdown(DRAIN), answered);
    let _ = timeout(CLOSING, connections.shutdown()).await;
    Ok(())
}

/// The body of an answer. Until it is written, its request counts as unanswered.
struct Answer {
    body: WireBody,
    _unanswered: Option<TaskTrackerToken>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = WireError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    // An answer of a known length is sent with that length.
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(unix)]
async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

#[cfg(not(unix))]
async fn told_to_end() {
    let _ = tokio::signal::ctrl_c().await;
}
