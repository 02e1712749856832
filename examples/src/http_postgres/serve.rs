//! Serving with axum, to the end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{Router, middleware, routing::get};
use http::header::CONTENT_TYPE;
use mcp_idempotent_tower::{Idempotency, Store, http::LiftKeyLayer};
use metrics_exporter_prometheus::PrometheusHandle;
use rmcp::{
    ServerHandler,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::sign_in::{Users, authenticate};
use crate::command_line::say;

/// How long a call may still run after Ctrl-C.
const DEADLINE: Duration = Duration::from_secs(30);

/// Everything that is served over HTTP, and what stops the sessions in it.
#[derive(Debug)]
pub struct App {
    router: Router,
    stop: CancellationToken,
}

/// `server` at `/mcp` for those who sign in, and the metrics at `/metrics`.
pub fn app<H>(server: H, users: &Arc<Users>, metrics: &PrometheusHandle) -> App
where
    H: ServerHandler + Clone + Send + Sync + 'static,
{
    let stop = CancellationToken::new();
    let mcp = StreamableHttpService::new(
        // One server for all sessions: they share the records.
        move || Ok(server.clone()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default().with_cancellation_token(stop.child_token()),
    );
    let metrics = metrics.clone();
    let router = Router::new()
        .nest_service("/mcp", mcp)
        // For clients that send the key as SEP-3182 has it.
        .layer(LiftKeyLayer::new().with_capability())
        // The last is the outermost: the body of somebody unknown is not even read.
        .layer(middleware::from_fn_with_state(
            Arc::clone(users),
            authenticate,
        ))
        .route(
            "/metrics",
            get(async move || {
                let format = [(CONTENT_TYPE, "text/plain; version=0.0.4")];
                (format, metrics.render())
            }),
        );
    App { router, stop }
}

/// Serves until Ctrl-C, and then until every call that has begun has its record.
///
/// # Errors
///
/// The address cannot be listened on, or calls still run at the deadline.
pub async fn serve<S: Store>(
    App { router, stop }: App,
    address: SocketAddr,
    idempotency: &Idempotency<S>,
) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    say(format_args!(
        "listening on http://{}/mcp\n",
        listener.local_addr()?
    ));
    let server =
        axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let mut serving = tokio::spawn(server.into_future());
    tokio::select! {
        ended = &mut serving => ended??,
        pressed = tokio::signal::ctrl_c() => pressed.context("cannot wait for Ctrl-C")?,
    }
    say(format_args!("stopping\n"));
    // No new calls. Those that run lose their callers, and run on.
    stop.cancel();
    let closed = timeout(DEADLINE, &mut serving).await;
    // Their effects and records; the callers get the results when they ask again.
    idempotency.shutdown(DEADLINE).await?;
    closed.context("connections are still open")???;
    Ok(())
}
