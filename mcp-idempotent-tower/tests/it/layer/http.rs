//! Over real HTTP: scopes, disconnects, and the key in `params.idempotencyKey`.

mod lift;
mod sessions;

use std::{net::SocketAddr, time::Duration};

use mcp_idempotent_tower::{
    Denied, Idempotency, IdempotencyBuilder, IdempotencyLayer, LayeredServer, MemoryStore, Scope,
    ServerExt as _, ToolService, http::LiftKeyLayer,
};
use rmcp::{
    ServerHandler,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tower::Layer as _;

use super::{Mailer, lease};

/// A server on a port of its own.
#[derive(Debug, Clone, Copy)]
struct Site(SocketAddr);

#[derive(Debug, Clone, Copy)]
enum Mode {
    Sessions,
    Stateless,
}

impl Site {
    async fn of<H: ServerHandler + Clone>(server: H, mode: Mode) -> Self {
        Self::behind(LiftKeyLayer::new().with_capability(), server, mode).await
    }

    async fn behind<H: ServerHandler + Clone>(lift: LiftKeyLayer, server: H, mode: Mode) -> Self {
        let config = match mode {
            Mode::Sessions => StreamableHttpServerConfig::default(),
            Mode::Stateless => StreamableHttpServerConfig::default()
                .with_legacy_session_mode(false)
                .with_json_response(true),
        };
        let service: StreamableHttpService<H, LocalSessionManager> = StreamableHttpService::new(
            move || Ok(server.clone()),
            std::sync::Arc::default(),
            config.with_sse_keep_alive(None),
        );
        let service = lift.layer(service);
        let router = axum::Router::new().nest_service("/mcp", service);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let site = Self(listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        site
    }

    fn uri(self) -> String {
        format!("http://{}/mcp", self.0)
    }

    /// Sends a request, and leaves the connection open.
    async fn send(self, headers: &[(&str, &str)], body: &Value) -> TcpStream {
        self.send_text(headers, &body.to_string()).await
    }

    async fn send_text(self, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.0).await.unwrap();
        let mut request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nConnection: close\r\n\
             Content-Length: {}\r\n",
            self.0,
            body.len()
        );
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        request.push_str(body);
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// The whole answer, head and body.
    async fn post(self, headers: &[(&str, &str)], body: &Value) -> String {
        let mut stream = self.send(headers, body).await;
        read_until(&mut stream, |_| false).await
    }

    /// The JSON-RPC answer of a server without sessions.
    async fn answer(self, headers: &[(&str, &str)], body: &Value) -> Value {
        self.answer_text(headers, &body.to_string()).await
    }

    async fn answer_text(self, headers: &[(&str, &str)], body: &str) -> Value {
        let mut stream = self.send_text(headers, body).await;
        let text = read_until(&mut stream, |_| false).await;
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|_| panic!("not JSON: {text}"))
    }
}

/// What comes, until it is enough or the server hangs up.
async fn read_until(stream: &mut TcpStream, is_enough: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !is_enough(&text) {
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut buffer)).await;
        match read.unwrap_or_else(|_| panic!("nothing more came after {text}")) {
            Ok(0) => break,
            Ok(read) => text.push_str(std::str::from_utf8(&buffer[..read]).unwrap()),
            Err(error) => panic!("{error} after {text}"),
        }
    }
    text
}

fn builder() -> IdempotencyBuilder<MemoryStore> {
    Idempotency::builder("mailer", MemoryStore::new())
}

/// Whose key it is stands in a header that an authentication layer would have checked.
fn by_user(builder: IdempotencyBuilder<MemoryStore>) -> Idempotency<MemoryStore> {
    builder
        .with_scope_from(|context| {
            let parts = context.extensions.get::<http::request::Parts>();
            let user = parts.and_then(|parts| parts.headers.get("x-user")?.to_str().ok());
            user.map(Scope::new)
                .ok_or_else(|| Denied::new("who are you?"))
        })
        .build()
        .unwrap()
}

fn behind(
    mailer: &Mailer,
    idempotency: &Idempotency<MemoryStore>,
) -> LayeredServer<Mailer, impl ToolService> {
    let layer = IdempotencyLayer::new(idempotency.clone(), lease()).unwrap();
    mailer.clone().idempotent(layer)
}

fn called(tool: &str, more: Value) -> Value {
    let mut params = json!({ "name": tool, "arguments": { "text": "hello" } });
    for (name, value) in more.as_object().unwrap() {
        params[name] = value.clone();
    }
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })
}
