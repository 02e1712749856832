//! rmcp's own client as a driver of `tests/interop`. `tests/interop/clients/common/driver.py` says what a
//! driver is, and what is said to it.

use std::{collections::HashMap, io, process::Stdio, sync::Arc, time::Duration};

use mcp_idempotent_tower::wire;
use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientCapabilities,
        ClientConfig, ClientRequest, CustomRequest, ElicitRequestParams, ElicitResult,
        ElicitationAction, Implementation, ProtocolVersion,
    },
    service::{
        ClientLifecycleMode, ClientServiceExt as _, PeerRequestOptions, RequestContext,
        RunningService, ServiceError,
    },
    transport::StreamableHttpClientTransport,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, Command},
    sync::Mutex,
    time::{sleep, timeout},
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said {
    id: u64,
    r#do: String,
    on: String,
    stdio: Option<Vec<String>>,
    http: Option<String>,
    revision: Option<String>,
    #[serde(default)]
    agrees: bool,
    timeout_ms: Option<u64>,
    tool: Option<String>,
    arguments: Option<Value>,
    key: Option<String>,
    cancel_after_ms: Option<u64>,
}

/// A client whose user agrees to whatever is asked, if there is a user.
struct Client {
    agrees: bool,
    revision: ProtocolVersion,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let capabilities = if self.agrees {
            ClientCapabilities::builder().enable_elicitation().build()
        } else {
            ClientCapabilities::default()
        };
        let mut info = ClientConfig::new(capabilities, Implementation::new("interop", "1"));
        info.protocol_version = self.revision.clone();
        info
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "agreed": true })))
    }
}

struct Connection {
    service: RunningService<RoleClient, Client>,
    timeout: Option<Duration>,
    // Ends with the connection.
    _server: Option<Child>,
}

type Connections = Arc<Mutex<HashMap<String, Arc<Connection>>>>;

#[tokio::main]
async fn main() -> io::Result<()> {
    let connections = Connections::default();
    let output = Arc::new(Mutex::new(tokio::io::stdout()));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let said: Said = serde_json::from_str(&line)?;
        let (connections, output) = (Arc::clone(&connections), Arc::clone(&output));
        tokio::spawn(async move {
            let id = said.id;
            let answer = match carry_out(said, &connections).await {
                Ok(ok) => json!({ "id": id, "ok": ok }),
                Err(error) => json!({ "id": id, "error": described(&*error) }),
            };
            let mut output = output.lock().await;
            let line = format!("{answer}\n");
            if output.write_all(line.as_bytes()).await.is_ok() {
                drop(output.flush().await);
            }
        });
    }
    Ok(())
}

async fn carry_out(said: Said, connections: &Connections) -> Result<Value, Failure> {
    match &*said.r#do {
        "connect" => {
            let connection = Arc::new(connect(&said).await?);
            connections.lock().await.insert(said.on, connection);
            Ok(json!({}))
        }
        "close" => {
            let connection = connections.lock().await.remove(&said.on);
            if let Some(connection) = connection.and_then(Arc::into_inner) {
                connection.service.cancel().await?;
            }
            Ok(json!({}))
        }
        other => {
            let connection = connections.lock().await.get(&said.on).map(Arc::clone);
            let connection = connection.ok_or("no such connection")?;
            match other {
                "call" => call(&connection, said).await,
                "status" => status(&connection, said).await,
                _ => Err(format!("rmcp's client has no {other}").into()),
            }
        }
    }
}

async fn connect(said: &Said) -> Result<Connection, Failure> {
    let revision = match said.revision.as_deref() {
        Some("2025-06-18") => ProtocolVersion::V_2025_06_18,
        Some("2026-07-28") => ProtocolVersion::V_2026_07_28,
        _ => ProtocolVersion::V_2025_11_25,
    };
    let lifecycle = if revision == ProtocolVersion::V_2026_07_28 {
        ClientLifecycleMode::Discover {
            preferred_versions: vec![revision.clone()],
        }
    } else {
        ClientLifecycleMode::Initialize
    };
    let client = Client {
        agrees: said.agrees,
        revision,
    };
    let mut server = None;
    let service = if let Some(url) = &said.http {
        let transport = StreamableHttpClientTransport::from_uri(url.clone());
        client.serve_with_lifecycle(transport, lifecycle).await?
    } else {
        let command = said.stdio.as_deref().ok_or("neither stdio nor http")?;
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pipes = child.stdout.take().zip(child.stdin.take());
        server = Some(child);
        client
            .serve_with_lifecycle(pipes.ok_or("no pipes")?, lifecycle)
            .await?
    };
    Ok(Connection {
        service,
        timeout: said.timeout_ms.map(Duration::from_millis),
        _server: server,
    })
}

async fn call(connection: &Connection, said: Said) -> Result<Value, Failure> {
    let mut params = CallToolRequestParams::new(said.tool.unwrap_or_default());
    params.arguments = said.arguments.and_then(|it| it.as_object().cloned());
    if let Some(key) = said.key {
        // key
        params
            .meta
            .get_or_insert_default()
            .insert("idempotency-key".into(), key.into());
        // end
    }
    if connection.service.service().agrees {
        // rmcp makes all rounds of such a call, without a time limit of its own.
        let answer = connection.service.call_tool(params);
        let limit = connection.timeout.unwrap_or(Duration::MAX);
        return Ok(result(&json!(timeout(limit, answer).await??)));
    }
    let mut options = PeerRequestOptions::no_options();
    options.timeout = connection.timeout;
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let sent = connection
        .service
        .send_cancellable_request(request, options)
        .await?;
    let Some(after) = said.cancel_after_ms else {
        return Ok(result(&json!(sent.await_response().await?)));
    };
    let cancelled = CancelledNotificationParam::new(Some(sent.id.clone()), None);
    sleep(Duration::from_millis(after)).await;
    connection.service.notify_cancelled(cancelled).await?;
    drop(timeout(Duration::from_millis(1), sent.await_response()).await);
    Err("cancelled by the caller".into())
}

async fn status(connection: &Connection, said: Said) -> Result<Value, Failure> {
    let mut params = json!({ "tool": said.tool, "arguments": said.arguments });
    if let Some(key) = said.key {
        params["key"] = key.into();
    }
    let request = CustomRequest::new(wire::STATUS_METHOD, Some(params));
    let answer = connection
        .service
        .send_request(ClientRequest::CustomRequest(request))
        .await?;
    Ok(json!(answer))
}

fn result(answer: &Value) -> Value {
    let blocks = answer["content"].as_array().into_iter().flatten();
    let text: Vec<_> = blocks.filter_map(|block| block["text"].as_str()).collect();
    json!({
        "text": text,
        "structured": answer["structuredContent"],
        "meta": answer["_meta"],
        "isError": answer["isError"] == true,
    })
}

fn described(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Value {
    let mut described = json!({ "type": "ServiceError", "message": error.to_string() });
    if let Some(ServiceError::McpError(inner)) = error.downcast_ref() {
        described["type"] = "ServiceError::McpError".into();
        described["message"] = inner.message.to_string().into();
        described["code"] = inner.code.0.into();
        described["data"] = json!(inner.data);
    }
    described
}
