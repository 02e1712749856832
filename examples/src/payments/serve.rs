//! Serving over stdio and over Streamable HTTP.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use mcp_idempotent_tower::{
    ServerExt as _,
    http::LiftKeyLayer,
    layer::{IdempotencyLayer, Rule},
    stdio::LiftKeyReader,
};
use rmcp::{
    ServerHandler, ServiceExt as _,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use tokio::io::{stdin, stdout};
use tokio_util::sync::CancellationToken;

use super::{
    answers::LateAnswers,
    options::Options,
    server::{Books, Payments},
};
use crate::command_line::say;

/// Serves until the client leaves, or until Ctrl-C.
///
/// # Errors
///
/// The transport cannot be opened.
pub(super) async fn serve<B: Books>(server: Payments<B>, options: &Options) -> anyhow::Result<()> {
    // The tools that are to be protected are annotated. What the layer adds is the capability, and the
    // answers to status requests.
    let layer = IdempotencyLayer::new(server.idempotency.clone(), Rule::untouched())?;
    let server = LateAnswers::new(server, options.answer_delay).idempotent(layer);
    match options.http {
        Some(address) => serve_http(server, address).await,
        None => serve_stdio(server).await,
    }
}

async fn serve_stdio(server: impl ServerHandler) -> anyhow::Result<()> {
    // Clients may send the key as SEP-3182 has it.
    let input = LiftKeyReader::new(stdin());
    let running = server
        .serve((input, stdout()))
        .await
        .context("no MCP client on standard input")?;
    running.waiting().await?;
    Ok(())
}

async fn serve_http<H>(server: H, address: SocketAddr) -> anyhow::Result<()>
where
    H: ServerHandler + Clone + Send + Sync + 'static,
{
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    say(format_args!(
        "listening on http://{}/mcp\n",
        listener.local_addr()?
    ));
    let stop = CancellationToken::new();
    let service = StreamableHttpService::new(
        // One server for all sessions: they share the records.
        move || Ok(server.clone()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default().with_cancellation_token(stop.child_token()),
    );
    let app = axum::Router::new()
        .nest_service("/mcp", service)
        .layer(LiftKeyLayer::new());
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
            stop.cancel();
        })
        .await?;
    Ok(())
}
