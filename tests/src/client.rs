//! rmcp's own client, with a tap on the wire: what the server sent is seen as it was sent.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use rmcp::{
    RoleClient, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequest, CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest,
        Implementation, MetaObject, ProtocolVersion, ServerResult,
    },
    service::{
        ClientLifecycleMode, ClientServiceExt as _, PeerRequestOptions, RequestHandle,
        RunningService, ServiceError,
    },
};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};

use mcp_idempotent_tower::wire;

/// No answer takes as long, however busy the machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

type Lines = Arc<Mutex<HashMap<String, String>>>;

/// A client of one server.
#[derive(Debug)]
pub struct Client {
    service: RunningService<RoleClient, ClientConfig>,
    lines: Lines,
}

/// A call that was sent.
#[derive(Debug)]
pub struct Sent {
    handle: RequestHandle<RoleClient>,
    lines: Lines,
}

/// The server's answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The line as it was sent.
    pub line: String,
    /// `{"result": …}` or `{"error": …}`, from that line.
    pub json: Value,
}

impl Client {
    /// Serves `server` over a pipe, and connects with the handshake of the newest protocol.
    pub async fn of(server: impl ServerHandler) -> Self {
        let (here, there) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            if let Ok(running) = server.serve(there).await {
                drop(running.waiting().await);
            }
        });
        let (reader, writer) = tokio::io::split(here);
        Self::connect(reader, writer).await.unwrap()
    }

    /// Connects to a server at the other end of a pipe.
    pub async fn connect(
        from_server: impl AsyncRead + Send + Unpin + 'static,
        to_server: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self, rmcp::service::ClientInitializeError> {
        let lines = Lines::default();
        let (mut tapped, reader) = tokio::io::duplex(1 << 16);
        tokio::spawn({
            let lines = Arc::clone(&lines);
            async move {
                let mut from_server = BufReader::new(from_server).lines();
                while let Ok(Some(mut line)) = from_server.next_line().await {
                    if let Ok(message) = serde_json::from_str::<Value>(&line)
                        && message.get("method").is_none()
                    {
                        let id = message["id"].to_string();
                        lines.lock().unwrap().insert(id, line.clone());
                    }
                    line.push('\n');
                    if tapped.write_all(line.as_bytes()).await.is_err() {
                        break;
                    }
                }
            }
        });
        let lifecycle = ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        };
        let capabilities = ClientCapabilities::builder().enable_tasks().build();
        let service = ClientConfig::new(capabilities, Implementation::new("tests", "0"))
            .serve_with_lifecycle((reader, to_server), lifecycle)
            .await?;
        Ok(Self { service, lines })
    }

    /// Sends a call without waiting for its answer.
    pub async fn send(&self, params: CallToolRequestParams) -> Result<Sent, ServiceError> {
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let handle = self
            .service
            .send_cancellable_request(request, PeerRequestOptions::no_options())
            .await?;
        Ok(Sent {
            handle,
            lines: Arc::clone(&self.lines),
        })
    }

    /// Sends a call; `Err` is a server that went away.
    pub async fn try_call(&self, params: CallToolRequestParams) -> Result<Answer, ServiceError> {
        self.send(params).await?.answer().await
    }

    /// Sends a call to a server that answers.
    pub async fn call(&self, params: CallToolRequestParams) -> Answer {
        tokio::time::timeout(PATIENCE, self.try_call(params))
            .await
            .expect("an answer, never silence")
            .expect("an answer")
    }

    /// As [`call`](Self::call), of the default tool, under a key.
    pub async fn keyed(&self, key: &str, arguments: Value) -> Answer {
        self.call(call("work", arguments).with_key(key)).await
    }

    /// The entries of `tools/list`.
    pub async fn tools(&self) -> Vec<Value> {
        let tools = self.service.list_all_tools().await.unwrap();
        tools.into_iter().map(|tool| json!(tool)).collect()
    }

    /// Ends the connection. Calls that wait for an answer hear that there will be none.
    pub fn hang_up(&self) {
        self.service.cancellation_token().cancel();
    }

    /// Leaves the server without waiting for anything.
    pub async fn leave(self) {
        drop(self.service.cancel().await);
    }
}

impl Sent {
    pub async fn answer(self) -> Result<Answer, ServiceError> {
        let id = json!(self.handle.id).to_string();
        let typed = match self.handle.await_response().await {
            Ok(result) => json!({ "result": as_json(result) }),
            Err(ServiceError::McpError(error)) => json!({ "error": error }),
            Err(error) => return Err(error),
        };
        let line = self.lines.lock().unwrap().remove(&id).unwrap();
        let mut json: Value = serde_json::from_str(&line).unwrap();
        let object = json.as_object_mut().unwrap();
        object.remove("id");
        object.remove("jsonrpc");
        // rmcp's client understood it as the same kind of answer.
        assert_eq!(
            typed.get("error").is_some(),
            json.get("error").is_some(),
            "{line}"
        );
        Ok(Answer { line, json })
    }

    /// Cancels the call, as a user who presses stop.
    pub async fn cancel(self) {
        drop(self.handle.cancel(None).await);
    }
}

fn as_json(result: ServerResult) -> Value {
    serde_json::to_value(result).unwrap()
}

impl Answer {
    pub fn error(&self) -> &Value {
        let error = &self.json["error"];
        assert!(error.is_object(), "expected an error: {}", self.line);
        error
    }

    pub fn result(&self) -> &Value {
        let result = &self.json["result"];
        assert!(result.is_object(), "expected a result: {}", self.line);
        result
    }

    /// The first content block's text.
    pub fn text(&self) -> &str {
        self.result()["content"][0]["text"].as_str().unwrap()
    }

    /// The text of a result that is no error.
    pub fn success(&self) -> &str {
        assert_ne!(self.result()["isError"], true, "{}", self.line);
        self.text()
    }

    /// Whether it is an error, or a refusal in the form of a result.
    pub fn is_failure(&self) -> bool {
        self.json.get("error").is_some() || self.in_result().is_object()
    }

    fn in_result(&self) -> &Value {
        &self.json["result"]["_meta"][wire::REFUSAL]
    }

    /// What a failure advises; null if it is the handler's own.
    pub fn action(&self) -> &Value {
        if self.in_result().is_object() {
            &self.in_result()["action"]
        } else {
            &self.error()["data"]["action"]
        }
    }

    /// What one of our refusals says, in either form.
    pub fn refused(&self) -> &Value {
        let data = if self.in_result().is_object() {
            assert_eq!(self.json["result"]["isError"], true, "{}", self.line);
            self.in_result()
        } else {
            &self.error()["data"]
        };
        assert!(
            data["type"].is_string(),
            "expected a refusal of ours: {}",
            self.line
        );
        data
    }

    /// The `type` of one of our refusals.
    pub fn refusal(&self) -> &str {
        self.refused()["type"].as_str().unwrap()
    }

    pub fn outcome(&self) -> &str {
        self.refused()["outcome"].as_str().unwrap()
    }

    pub fn is_replay(&self) -> bool {
        self.json["result"]["_meta"].get(wire::REPLAYED).is_some()
    }

    /// The answer as first given: without the marker.
    pub fn unmarked(&self) -> Value {
        let mut json = self.json.clone();
        if let Some(result) = json.get_mut("result").and_then(Value::as_object_mut)
            && let Some(meta) = result.get_mut("_meta").and_then(Value::as_object_mut)
        {
            meta.remove(wire::REPLAYED);
            if meta.is_empty() {
                result.remove("_meta");
            }
        }
        json
    }
}

/// A call of `tool` without a key.
pub fn call(tool: &str, arguments: Value) -> CallToolRequestParams {
    let mut params = CallToolRequestParams::new(tool.to_owned());
    params.arguments = match arguments {
        Value::Object(arguments) => Some(arguments),
        Value::Null => None,
        other => panic!("not an object: {other}"),
    };
    params
}

/// More to say about a call.
pub trait CallExt {
    /// `_meta["idempotency-key"]`.
    #[must_use]
    fn with_key(self, key: impl Into<Value>) -> Self;

    /// What the client sends back in a further round.
    #[must_use]
    fn with_state(self, state: &str) -> Self;
}

impl CallExt for CallToolRequestParams {
    fn with_key(mut self, key: impl Into<Value>) -> Self {
        let meta = Map::from_iter([(wire::KEY.to_owned(), key.into())]);
        self.meta = Some(MetaObject(meta).into());
        self
    }

    fn with_state(mut self, state: &str) -> Self {
        self.request_state = Some(state.to_owned());
        self
    }
}
