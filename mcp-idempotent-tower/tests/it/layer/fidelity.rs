//! A wrapped server answers every method as the bare one does.

mod everything;

use std::time::Duration;

use mcp_idempotent_tower::{ServerExt as _, layer::Rule, wire};
use rmcp::{ServerHandler, ServiceExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tower::layer::util::Identity;

use self::everything::Everything;
use super::{layer, lease, until};

/// Talks to a server line by line.
struct Line {
    stream: BufReader<DuplexStream>,
    heard: Vec<Value>,
}

impl Line {
    fn to(server: impl ServerHandler) -> Self {
        let (here, there) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let running = server.serve(there).await.unwrap();
            running.waiting().await.unwrap();
        });
        Self {
            stream: BufReader::new(here),
            heard: Vec::new(),
        }
    }

    async fn say(&mut self, message: Value) {
        let text = format!("{message}\n");
        self.stream
            .get_mut()
            .write_all(text.as_bytes())
            .await
            .unwrap();
    }

    /// Sends a request and keeps what comes, up to its answer.
    async fn ask(&mut self, id: usize, method: &str, params: &Value) {
        self.say(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .await;
        loop {
            let mut line = String::new();
            let read = self.stream.read_line(&mut line);
            let read = tokio::time::timeout(Duration::from_secs(20), read).await;
            let read = read.unwrap_or_else(|_| panic!("no answer to {method}"));
            assert_ne!(read.unwrap(), 0, "the server hung up at {method}");
            let message: Value = serde_json::from_str(&line).unwrap();
            let is_answer = message["id"] == json!(id) && message.get("method").is_none();
            self.heard.push(message);
            if is_answer {
                return;
            }
        }
    }
}

const METHODS: [&str; 23] = [
    "ping",
    "tools/list",
    "tools/call",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "resources/directory/read",
    "completion/complete",
    "logging/setLevel",
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
    "skills/list",
    "skills/get",
    "subscriptions/listen",
    "author/custom",
    "tools/call",
    "server/discover",
    "tools/list",
];

fn params(method: &str) -> Value {
    match method {
        "tools/call" => json!({ "name": "t", "arguments": { "a": 1 } }),
        "prompts/get" => json!({ "name": "p" }),
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
            json!({ "uri": "r://1" })
        }
        "resources/directory/read" => json!({ "uri": "skill://greet/" }),
        "skills/get" => json!({ "uri": "skill://greet/SKILL.md" }),
        "completion/complete" => json!({
            "ref": { "type": "ref/prompt", "name": "p" }, "argument": { "name": "a", "value": "b" },
        }),
        "logging/setLevel" => json!({ "level": "info" }),
        "tasks/get" | "tasks/cancel" => json!({ "taskId": "t" }),
        "tasks/update" => json!({ "taskId": "t", "inputResponses": {} }),
        "subscriptions/listen" => json!({ "notifications": { "toolsListChanged": true } }),
        _ => json!({}),
    }
}

/// Everything that a client can say, under one revision; what came back, and what was called.
async fn converse(bare: &Everything, server: impl ServerHandler, modern: bool) -> Vec<Value> {
    let capabilities = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let client = json!({ "name": "client", "version": "1" });
    let mut line = Line::to(server);
    let mut meta = json!({ "progressToken": 5 });
    if modern {
        meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": client,
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        });
        line.ask(0, "server/discover", &json!({ "_meta": meta }))
            .await;
    } else {
        let initialize = json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client,
        });
        line.ask(0, "initialize", &initialize).await;
        line.say(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))
            .await;
    }
    for (id, method) in METHODS.into_iter().enumerate() {
        let mut params = params(method);
        params["_meta"] = meta.clone();
        line.ask(id + 1, method, &params).await;
    }
    for (method, params) in [
        (
            "notifications/progress",
            json!({ "progressToken": 1, "progress": 1.0 }),
        ),
        ("notifications/roots/list_changed", json!({})),
        ("notifications/author", json!({})),
        (
            "notifications/cancelled",
            json!({ "requestId": 999, "reason": "why" }),
        ),
    ] {
        let before = bare.notes().len();
        line.say(json!({ "jsonrpc": "2.0", "method": method, "params": params }))
            .await;
        until(method, || bare.notes().len() > before).await;
    }
    line.heard
}

#[tokio::test]
async fn a_wrapped_server_answers_every_method_as_the_bare_one() {
    for modern in [false, true] {
        let bare = Everything::default();
        let expected = converse(&bare, bare.clone(), modern).await;
        assert!(expected.len() > METHODS.len(), "{expected:#?}");

        let layered = Everything::default();
        let heard = converse(&layered, layered.clone().layered(Identity::new()), modern).await;
        assert_same(&heard, &expected);
        assert_eq!(layered.notes(), bare.notes());

        let wrapped = Everything::default();
        let server = wrapped.clone().idempotent(layer(lease()));
        let heard = converse(&wrapped, server, modern).await;
        // Said once for each way in, and once for each list; nothing else differs.
        let mut heard = Value::Array(heard);
        assert!(heard.to_string().contains(wire::EXTENSION), "{heard}");
        forget(&mut heard, wire::EXTENSION);
        assert_same(heard.as_array().unwrap(), &expected);
        assert_eq!(wrapped.notes(), bare.notes());

        let untouched = Everything::default();
        let server = untouched.clone().idempotent(layer(Rule::untouched()));
        assert_eq!(server.get_tool("t"), bare.get_tool("t"));
        assert_eq!(server.get_tool("u"), None);
        assert_eq!(
            server.supported_protocol_versions(),
            bare.supported_protocol_versions()
        );
    }
}

#[tokio::test]
async fn every_method_of_the_handler_is_reached() {
    let handler = Everything::default();
    let server = handler.clone().idempotent(layer(lease()));
    converse(&handler, server.clone(), false).await;
    converse(&handler, server, true).await;
    let notes = handler.notes();
    for method in [
        "ping",
        "initialize",
        "negotiate_initialize",
        "discover",
        "complete",
        "set_level",
        "get_prompt",
        "list_prompts",
        "list_resources",
        "list_resource_templates",
        "read_resource",
        "accepted_subscription_filter",
        "listen",
        "subscribe",
        "unsubscribe",
        "call_tool",
        "on_custom_request",
        "on_cancelled",
        "on_progress",
        "on_initialized",
        "on_roots_list_changed",
        "on_custom_notification",
        "get_task",
        "update_task",
        "cancel_task",
        "list_skills",
        "get_skill",
        "read_resource_directory",
    ] {
        assert!(
            notes.contains(&method),
            "{method} was not called: {notes:?}"
        );
    }
}

fn assert_same(heard: &[Value], expected: &[Value]) {
    assert_eq!(heard.len(), expected.len());
    for (heard, expected) in heard.iter().zip(expected) {
        assert_eq!(heard, expected);
    }
}

/// Removes a member wherever it is, and `_meta` that is empty after that.
fn forget(value: &mut Value, member: &str) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| forget(item, member)),
        Value::Object(members) => {
            members.remove(member);
            members.values_mut().for_each(|value| forget(value, member));
            if members.get("_meta").is_some_and(|meta| *meta == json!({})) {
                members.remove("_meta");
            }
        }
        _ => {}
    }
}
