//! rmcp's Streamable HTTP server on a port of its own, and callers whose connections can be cut.

use std::{net::SocketAddr, sync::Arc};

use rmcp::{
    ServerHandler,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use crate::world::within_patience;

pub(super) const MODERN: &str = "2026-07-28";
pub(super) const REVISIONS: [&str; 3] = ["2025-06-18", "2025-11-25", MODERN];

/// How a server is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Served {
    /// A session for each client of the older revisions; answers are event streams.
    InSessions,
    /// Without sessions, answers are JSON.
    AsJson,
    /// Without sessions, answers are event streams.
    AsEvents,
}

impl Served {
    pub(super) const ALL: [Self; 3] = [Self::InSessions, Self::AsJson, Self::AsEvents];

    /// Whether a client of `revision` has a session. The newest revision knows none.
    pub(super) fn has_session(self, revision: &str) -> bool {
        self == Self::InSessions && revision != MODERN
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Site {
    address: SocketAddr,
    served: Served,
}

impl Site {
    pub(super) async fn of<H: ServerHandler + Clone>(server: H, served: Served) -> Self {
        let config = StreamableHttpServerConfig::default()
            .with_sse_keep_alive(None)
            .with_legacy_session_mode(served == Served::InSessions)
            .with_json_response(served == Served::AsJson);
        let service: StreamableHttpService<H, LocalSessionManager> =
            StreamableHttpService::new(move || Ok(server.clone()), Arc::default(), config);
        let router = axum::Router::new().route_service("/mcp", service);
        let socket = TcpSocket::new_v4().unwrap();
        // Handed on to the connections: the system does not take a long answer off the server's
        // hands at once.
        socket.set_send_buffer_size(8192).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(64).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, served }
    }

    /// A caller of its own, where `revision` has sessions on one of its own.
    pub(super) async fn caller(self, revision: &'static str) -> Caller {
        self.caller_with(revision, json!({})).await
    }

    /// One that declares what it is capable of.
    pub(super) async fn caller_with(self, revision: &'static str, capabilities: Value) -> Caller {
        let mut caller = Caller {
            address: self.address,
            revision,
            capabilities,
            session: None,
            is_slow: false,
        };
        if self.served.has_session(revision) {
            let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
                "protocolVersion": revision, "capabilities": caller.capabilities,
                "clientInfo": { "name": "c", "version": "1" },
            }});
            let answer = Reply::read(caller.send(&initialize, None).await).await;
            let negotiated = &answer.message(0)["result"]["protocolVersion"];
            assert_eq!(negotiated, revision);
            caller.session = Some(answer.header("mcp-session-id").unwrap().to_owned());
            let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
            Reply::read(caller.send(&initialized, None).await).await;
        }
        caller
    }
}

#[derive(Debug, Clone)]
pub(super) struct Caller {
    address: SocketAddr,
    revision: &'static str,
    capabilities: Value,
    session: Option<String>,
    is_slow: bool,
}

impl Caller {
    /// Takes in little at a time from now on, so that a long answer stays under way.
    pub(super) const fn slow(mut self) -> Self {
        self.is_slow = true;
        self
    }

    /// A call of `tool` under `key`, as this revision writes it.
    pub(super) fn call(&self, id: u32, tool: &str, arguments: &Value, key: &str) -> Value {
        let params = json!({
            "name": tool, "arguments": arguments, "_meta": { "idempotency-key": key },
        });
        self.ask(id, "tools/call", params)
    }

    /// Any request, as this revision writes it.
    pub(super) fn ask(&self, id: u32, method: &str, mut params: Value) -> Value {
        if self.revision == MODERN {
            let meta = &mut params["_meta"];
            meta["io.modelcontextprotocol/protocolVersion"] = self.revision.into();
            meta["io.modelcontextprotocol/clientInfo"] = json!({ "name": "c", "version": "1" });
            meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        }
        json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
    }

    /// Sends the first `part` bytes of a body, or all of it; its connection.
    pub(super) async fn send(&self, body: &Value, part: Option<usize>) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        if self.is_slow {
            socket.set_recv_buffer_size(4096).unwrap();
        }
        let mut stream = socket.connect(self.address).await.unwrap();
        let text = body.to_string();
        let mut head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nConnection: close\r\n\
             MCP-Protocol-Version: {}\r\nContent-Length: {}\r\n",
            self.address,
            self.revision,
            text.len()
        );
        if self.revision == MODERN {
            let method = body["method"].as_str().unwrap();
            head.push_str(&format!("Mcp-Method: {method}\r\n"));
            let params = &body["params"];
            if let Some(name) = params["name"].as_str().or(params["taskId"].as_str()) {
                head.push_str(&format!("Mcp-Name: {name}\r\n"));
            }
        }
        if let Some(session) = &self.session {
            head.push_str(&format!("Mcp-Session-Id: {session}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let part = part.unwrap_or(text.len());
        stream.write_all(&text.as_bytes()[..part]).await.unwrap();
        stream
    }

    /// Sends `body`, and gives the JSON-RPC answer to it.
    pub(super) async fn answer(&self, body: &Value) -> Value {
        let id = body["id"].as_u64().unwrap();
        Reply::read(self.send(body, None).await).await.message(id)
    }
}

/// Reads the first bytes of an answer until `sign` has come.
pub(super) async fn read_some(stream: &mut TcpStream, sign: &str) {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(sign) {
        let mut buffer = [0; 512];
        let read = within_patience(stream.read(&mut buffer)).await.unwrap();
        assert_ne!(read, 0, "ended: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..read]);
    }
}

/// A whole HTTP response.
#[derive(Debug)]
struct Reply {
    head: String,
    body: String,
}

impl Reply {
    async fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        within_patience(stream.read_to_end(&mut bytes))
            .await
            .unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let mut reply = Self {
            head: head.to_owned(),
            body: body.to_owned(),
        };
        if reply.header("transfer-encoding") == Some("chunked") {
            reply.body = unchunked(body);
        }
        reply
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// The only answer that it has, which must be one to `id`.
    fn message(&self, id: u64) -> Value {
        let messages: Vec<&str> = match self.header("content-type") {
            Some("text/event-stream") => self
                .body
                .lines()
                .filter_map(|line| line.strip_prefix("data:"))
                .filter(|data| !data.trim().is_empty())
                .collect(),
            _ => vec![&self.body],
        };
        let [message] = messages[..] else {
            panic!("not one message: {self:?}");
        };
        let message: Value =
            serde_json::from_str(message).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert_eq!(message["id"], id, "{message}");
        message
    }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").expect("a chunk's size");
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return whole;
        }
        whole.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
}
