//! A client and a server with a relay between them, both played by the test.

use std::time::Duration;

use mcp_idempotent_tower::{
    Idempotency, MemoryStore, Policy, Store,
    relay::{Relay, RelaySettings},
};
use serde_json::{Value, json};
use tokio::{
    io::{
        AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf,
        duplex, split,
    },
    task::JoinHandle,
    time::timeout,
};

/// How much either side may be behind.
const PIPE: usize = 64 * 1024;

/// How long something that must happen may take.
const BOUND: Duration = Duration::from_secs(60);

pub(super) fn relay(settings: RelaySettings) -> Relay<MemoryStore> {
    Relay::new(idempotency(), settings).unwrap()
}

pub(super) fn idempotency() -> Idempotency<MemoryStore> {
    let mut policy = Policy::default();
    policy.key_argument = Some("/request_id".into());
    let builder = Idempotency::builder("shop", MemoryStore::new()).with_one_caller();
    builder.with_policy(policy).build().unwrap()
}

/// Both ends.
pub(super) struct Ends {
    pub(super) client: Peer,
    pub(super) server: Peer,
    pub(super) running: JoinHandle<()>,
}

impl Ends {
    pub(super) fn of<S: Store>(relay: &Relay<S>) -> Self {
        let (client, to_client) = duplex(PIPE);
        let (server, to_server) = duplex(PIPE);
        let relay = relay.clone();
        Self {
            client: Peer::new(client),
            server: Peer::new(server),
            running: tokio::spawn(async move {
                relay.run(split(to_client), split(to_server)).await;
            }),
        }
    }

    /// With a server that has listed its tools: `charge`, `look` (which only reads), `set` (which is safe to
    /// repeat) and `book` (which recognises retries itself).
    pub(super) async fn listed<S: Store>(relay: &Relay<S>) -> Self {
        let mut ends = Self::of(relay);
        ends.client
            .say(&call(json!("first"), "look", json!({})))
            .await;
        ends.list().await;
        assert_eq!(ends.server.hear().await["id"], "first");
        ends
    }

    /// Answers the relay's own question for the tools.
    pub(super) async fn list(&mut self) {
        let asked = self.server.hear().await;
        assert_eq!(asked["method"], "tools/list");
        let tools = json!([
            { "name": "charge" },
            { "name": "look", "annotations": { "readOnlyHint": true } },
            { "name": "set", "annotations": { "idempotentHint": true } },
            { "name": "book", "_meta": { "io.github.mcp-idempotent/idempotency": { "key": "required" } } },
        ]);
        self.server.answer(&asked, json!({ "tools": tools })).await;
    }

    /// The client has gone, and the server then ends.
    pub(super) async fn end(self) {
        drop(self.client);
        let mut server = self.server;
        assert_eq!(server.line().await, None);
        drop(server);
        timeout(BOUND, self.running).await.unwrap().unwrap();
    }
}

/// One end.
pub(super) struct Peer {
    heard: Heard,
    said: Said,
}

impl Peer {
    pub(super) fn new(stream: DuplexStream) -> Self {
        let (reader, writer) = split(stream);
        Self {
            heard: Heard(BufReader::new(reader)),
            said: Said(writer),
        }
    }

    pub(super) fn halves(self) -> (Heard, Said) {
        (self.heard, self.said)
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) {
        self.said.0.write_all(bytes).await.unwrap();
    }

    pub(super) async fn close(&mut self) {
        self.said.0.shutdown().await.unwrap();
    }

    pub(super) async fn say(&mut self, message: &Value) {
        self.said.say(message).await;
    }

    /// Answers a request.
    pub(super) async fn answer(&mut self, request: &Value, result: Value) {
        self.say(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }))
            .await;
    }

    pub(super) async fn fail(&mut self, request: &Value, message: &str) {
        let error = json!({ "code": -32000, "message": message });
        self.say(&json!({ "jsonrpc": "2.0", "id": request["id"], "error": error }))
            .await;
    }

    pub(super) async fn line(&mut self) -> Option<Vec<u8>> {
        self.heard.line().await
    }

    pub(super) async fn hear(&mut self) -> Value {
        self.heard.hear().await
    }

    /// Nothing has come, and nothing comes before a ping of the other end.
    pub(super) async fn hears_only_ping(&mut self, other: &mut Self) {
        let ping = json!({ "jsonrpc": "2.0", "id": "ping", "method": "ping" });
        other.say(&ping).await;
        assert_eq!(self.hear().await, ping);
    }
}

/// What an end reads.
pub(super) struct Heard(BufReader<ReadHalf<DuplexStream>>);

impl Heard {
    /// The next line with its end, or `None` at the end.
    pub(super) async fn line(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        let read = self.0.read_until(b'\n', &mut line);
        timeout(BOUND, read).await.expect("nothing came").unwrap();
        (!line.is_empty()).then_some(line)
    }

    pub(super) async fn hear(&mut self) -> Value {
        serde_json::from_slice(&self.line().await.expect("the end")).unwrap()
    }
}

/// What an end writes.
pub(super) struct Said(WriteHalf<DuplexStream>);

impl Said {
    pub(super) async fn say(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.0.write_all(line.as_bytes()).await.unwrap();
    }
}

/// A tool call.
pub(super) fn call(id: Value, tool: &str, arguments: Value) -> Value {
    json!({
        "jsonrpc": "2.0",
        "id": id,
        "method": "tools/call",
        "params": { "name": tool, "arguments": arguments },
    })
}

/// A tool call with a key.
pub(super) fn keyed(id: Value, tool: &str, arguments: Value, key: &str) -> Value {
    let mut call = call(id, tool, arguments);
    call["params"]["_meta"] = json!({ "idempotency-key": key });
    call
}

pub(super) fn cancelled(id: &Value) -> Value {
    json!({
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": { "requestId": id, "reason": "too slow" },
    })
}

pub(super) fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// The text of a result.
pub(super) fn text_of(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_default()
}

/// What a refusal says of itself, in either form.
pub(super) fn refusal_of(answer: &Value) -> &Value {
    match &answer["error"]["data"] {
        Value::Null => &answer["result"]["_meta"]["io.github.mcp-idempotent/refusal"],
        data => data,
    }
}
