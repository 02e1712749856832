//! A server with what the official conformance suite (`@modelcontextprotocol/conformance`) expects of a
//! server, to be compared with itself behind the layer and behind the proxy.
#![expect(
    deprecated,
    reason = "logging and subscriptions are deprecated, and the suite asks for them"
)]

mod asking;
mod server;
mod tools;

use std::sync::Arc;

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, MemoryStore, OnError, ServerExt as _, layer::Rule,
};
use rmcp::{
    ServerHandler,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::local::LocalSessionManager,
    },
};

pub use server::Conformance;

/// Serves HTTP on a free port of this machine, and prints the URL. `wrapping` is `bare` or `layer`.
///
/// # Panics
///
/// `wrapping` is neither of these, or the server cannot start.
pub async fn serve(wrapping: &str) {
    match wrapping {
        "bare" => serve_http(Conformance::default()).await,
        "layer" => {
            let builder = Idempotency::builder("conformance", MemoryStore::new());
            let idempotency = builder.with_fixed_scope("the suite").build().unwrap();
            let layer = IdempotencyLayer::new(idempotency, Rule::lease(OnError::Release)).unwrap();
            serve_http(Conformance::default().idempotent(layer)).await;
        }
        other => panic!("neither bare nor layer: {other}"),
    }
}

async fn serve_http<H: ServerHandler + Clone + Send + Sync + 'static>(server: H) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = StreamableHttpService::new(
        move || Ok(server.clone()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    say(&format!("listening on http://{address}/mcp"));
    let app = axum::Router::new().nest_service("/mcp", service);
    axum::serve(listener, app).await.unwrap();
}

#[expect(clippy::print_stderr, reason = "whoever starts it reads this")]
fn say(line: &str) {
    eprintln!("{line}");
}
