//! A server that protects its tool itself, by hand, and may have one flaw; and how it is served.

mod server;

use std::{
    io::{Write as _, stdout},
    path::Path,
    sync::Arc,
    time::Duration,
};

use rmcp::{
    ServiceExt as _,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService, stdio,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use tokio::net::TcpListener;

pub use self::server::{Flaw, Planted, USER};

/// How long its tool takes: long enough for a fault in the middle.
const PACE: Duration = Duration::from_millis(100);

/// Serves until its client leaves, or until it is killed. `arguments`: the flaw, the file, and `http` if it is to be
/// reached over that.
pub async fn serve(arguments: &[String]) {
    let [flaw, file, rest @ ..] = arguments else {
        panic!("planted-server FLAW FILE [http]");
    };
    let known = Flaw::ALL.iter().find(|(name, _)| name == flaw);
    let (_, flaw) = *known.expect("a known flaw");
    let server = Planted::open(Path::new(file), flaw, PACE).await;
    if rest.is_empty() {
        let running = server.serve(stdio()).await.unwrap();
        drop(running.waiting().await);
        return;
    }
    let service: StreamableHttpService<Planted, LocalSessionManager> = StreamableHttpService::new(
        move || Ok(server.clone()),
        Arc::default(),
        StreamableHttpServerConfig::default(),
    );
    let router = axum::Router::new().nest_service("/mcp", service);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut out = stdout();
    writeln!(out, "http://{address}/mcp").unwrap();
    axum::serve(listener, router).await.unwrap();
}
