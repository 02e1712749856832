//! What clients see of a tool, and how the layer recognises one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, KeyRequirement, MemoryStore, Policy, RecordQuery,
    ServerExt as _, idempotent, layer::Rule, wire,
};
use rmcp::{
    ErrorData, Json, RoleServer, ServerHandler,
    handler::server::wrapper::Parameters,
    model::{
        CallToolRequestParams, CallToolResponse, ListToolsResult, PaginatedRequestParams, Tool,
    },
    service::RequestContext,
    tool, tool_router,
};
use serde_json::{Value, json};

use super::{Mailer, Sent, hello, idempotency, key, layer, lease, number, send, status::status};
use crate::client::{Client, call, connect, params, refused};

async fn tool(client: &Client, name: &str) -> Tool {
    let tools = client.list_all_tools().await.unwrap();
    tools.into_iter().find(|tool| tool.name == name).unwrap()
}

fn contract(tool: &Tool) -> &Value {
    &tool.meta.as_ref().unwrap()[wire::CONTRACT]
}

#[tokio::test]
async fn a_tools_contract_is_in_the_list() {
    let layer = IdempotencyLayer::builder(idempotency(), lease())
        .with_tool(
            "send_slowly",
            lease()
                .with_key(KeyRequirement::Derived)
                .with_ignored("trace")
                .with_key_argument("/meta/key"),
        )
        .with_tool("fail", Rule::untouched())
        .build()
        .unwrap();
    let client = connect(Mailer::new().idempotent(layer)).await;
    let day = 24 * 60 * 60 * 1000;
    assert_eq!(
        *contract(&tool(&client, "send").await),
        json!({ "mode": "lease", "key": "optional", "retentionMs": day })
    );
    assert_eq!(
        *contract(&tool(&client, "send_slowly").await),
        json!({
            "mode": "lease", "key": "derived", "keyArgument": "/meta/key",
            "ignoredArguments": ["/trace"], "retentionMs": day, "windowMs": 600_000,
        })
    );
    assert_eq!(tool(&client, "fail").await.meta, None);
    // A hint of the author's is the author's.
    let look = tool(&client, "look").await;
    assert_eq!(look.annotations.unwrap().idempotent_hint, None);
}

#[tokio::test]
async fn the_server_says_what_it_can_do() {
    let client = connect(Mailer::new().idempotent(layer(lease()))).await;
    let info = client.peer_info().unwrap();
    let extensions = info.capabilities.extensions.as_ref().unwrap();
    assert_eq!(
        Value::Object(extensions[wire::EXTENSION].clone()),
        json!({
            "retentionMs": 86_400_000,
            "keys": [
                "_meta[\"idempotency-key\"]",
                "_meta[\"io.github.mcp-idempotent/idempotency-key\"]",
            ],
            "inProgress": "wait",
            "waitMs": 30_000,
            "statusMethod": "io.github.mcp-idempotent/status",
        })
    );
}

#[tokio::test]
async fn a_key_argument_is_added_to_the_schema_and_taken_out_of_the_arguments() {
    let rule = lease()
        .with_key(KeyRequirement::Required)
        .with_key_argument("idempotency_key");
    let server = Mailer::new().idempotent(layer(rule));
    let defined = server.get_tool("send").unwrap();
    let client = connect(server).await;
    let listed = tool(&client, "send").await;
    assert_eq!(listed, defined);
    let schema = Value::Object((*listed.input_schema).clone());
    let property = &schema["properties"]["idempotency_key"];
    assert_eq!(property["type"], "string", "{schema}");
    assert!(
        property["description"]
            .as_str()
            .unwrap()
            .contains("same key"),
        "{property}"
    );
    let required = schema["required"].as_array().unwrap();
    assert!(required.contains(&json!("idempotency_key")), "{schema}");

    // `Message` denies unknown fields.
    let keyed = |key| json!({ "text": "hello", "idempotency_key": key });
    for (key, expected) in [("a", 1), ("a", 1), ("b", 2)] {
        let answer = call(&client, params("send", keyed(key), Value::Null)).await;
        assert_eq!(number(&answer), expected);
    }
    // The same key in `_meta` is the same call.
    assert_eq!(send(&client, key("a")).await, 1);
    let both = call(&client, params("send", keyed("a"), key("b"))).await;
    assert_eq!(both["error"]["data"]["type"], "idempotency_key_invalid");
}

/// One annotated tool and one that is not.
#[derive(Clone)]
struct Mixed {
    idempotency: Idempotency<MemoryStore>,
    calls: Arc<AtomicU32>,
}

#[tool_router]
impl Mixed {
    fn count(&self) -> Json<Sent> {
        Json(Sent {
            number: self.calls.fetch_add(1, Ordering::SeqCst) + 1,
        })
    }

    #[idempotent(on_error = release, ignore("text"))]
    #[tool]
    async fn annotated(&self, Parameters(message): Parameters<super::Message>) -> Json<Sent> {
        drop(message.text);
        self.count()
    }

    #[tool]
    async fn plain(&self, Parameters(message): Parameters<super::Message>) -> Json<Sent> {
        drop(message.text);
        self.count()
    }
}

impl Mixed {
    fn new() -> Self {
        Self {
            idempotency: idempotency(),
            calls: Arc::default(),
        }
    }
}

/// Written by hand: without `get_tool`, and with one tool to a page.
impl ServerHandler for Mixed {
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let context = rmcp::handler::server::tool::ToolCallContext::new(self, request, context);
        Self::tool_router().call(context).await
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = Self::tool_router().list_all();
        let at = request
            .and_then(|request| request.cursor)
            .map_or(0, |cursor| cursor.parse().unwrap());
        let mut page = ListToolsResult::with_all_items(vec![tools[at].clone()]);
        page.next_cursor = (at + 1 < tools.len()).then(|| (at + 1).to_string());
        Ok(page)
    }
}

#[tokio::test]
async fn an_annotated_tool_behind_the_layer_is_deduplicated_once() {
    let mixed = Mixed::new();
    let layer = IdempotencyLayer::new(mixed.idempotency.clone(), lease()).unwrap();
    let client = connect(mixed.clone().idempotent(layer)).await;
    for tool in ["annotated", "plain"] {
        let answers = [
            call(&client, params(tool, hello(), key(tool))).await,
            call(&client, params(tool, hello(), key(tool))).await,
        ];
        assert_eq!(number(&answers[0]), number(&answers[1]));
    }
    assert_eq!(mixed.calls.load(Ordering::SeqCst), 2);
    let records = mixed.idempotency.list(&RecordQuery::default()).await;
    assert_eq!(records.unwrap().len(), 2);
    // Each keeps its own rule: the annotation derives keys, the layer does not.
    for (tool, expected) in [("annotated", [3, 3]), ("plain", [4, 5])] {
        for expected in expected {
            let answer = call(&client, params(tool, hello(), Value::Null)).await;
            assert_eq!(number(&answer), expected, "{tool}");
        }
    }
    // What takes no part in its calls takes none in a question about them.
    let asked =
        json!({ "key": "annotated", "tool": "annotated", "arguments": { "text": "other" } });
    let found = status(&client, asked).await;
    assert_eq!(found["result"]["structuredContent"]["number"], 1, "{found}");
    // Its contract is its own too.
    let listed = tool(&client, "annotated").await;
    assert_eq!(
        *contract(&listed),
        json!({
            "mode": "lease", "key": "derived", "ignoredArguments": ["/text"],
            "retentionMs": 86_400_000, "windowMs": 600_000,
        })
    );
}

/// What annotations say, and what they leave to the server.
#[derive(Clone)]
struct Annotated {
    idempotency: Idempotency<MemoryStore>,
}

#[tool_router(server_handler)]
impl Annotated {
    #[idempotent(on_error = release)]
    #[tool]
    async fn says_nothing(&self, Parameters(message): Parameters<super::Message>) -> String {
        message.text
    }

    #[idempotent(
        on_error = release,
        key = derived,
        key_argument = "mine",
        ignore("text"),
        retention = "1h",
        window = "1m"
    )]
    #[tool]
    async fn says_all(&self, Parameters(message): Parameters<super::Message>) -> String {
        message.text
    }

    #[idempotent(on_error = release, key_argument = "mine")]
    #[tool]
    async fn has_an_argument(&self, Parameters(message): Parameters<super::Message>) -> String {
        message.text
    }
}

#[tokio::test]
async fn what_an_annotation_leaves_to_the_server_is_in_the_contract_that_a_client_reads() {
    let mut policy = Policy::default();
    policy.key = KeyRequirement::Required;
    policy.key_argument = Some("/theirs".into());
    policy.ignored = Arc::new(["/trace".into()]);
    policy.retention = Duration::from_secs(5);
    policy.window = Duration::from_secs(3);
    let idempotency = Idempotency::builder("annotated", MemoryStore::new())
        .with_one_caller()
        .with_policy(policy)
        .build()
        .unwrap();
    // Nothing but the annotations protects here.
    let layer = IdempotencyLayer::new(idempotency.clone(), Rule::untouched()).unwrap();
    let server = Annotated { idempotency }.idempotent(layer);
    let defined = server.get_tool("says_nothing").unwrap();
    let client = connect(server).await;
    let listed = tool(&client, "says_nothing").await;
    assert_eq!(listed, defined);
    assert_eq!(
        *contract(&listed),
        json!({
            "mode": "lease", "key": "required", "keyArgument": "/theirs",
            "ignoredArguments": ["/trace"], "retentionMs": 5000,
        })
    );
    assert_eq!(
        *contract(&tool(&client, "says_all").await),
        json!({
            "mode": "lease", "key": "derived", "keyArgument": "/mine",
            "ignoredArguments": ["/text"], "retentionMs": 3_600_000, "windowMs": 60_000,
        })
    );
    // It is so: a call without a key is refused, and the status request knows that there is none.
    let answer = call(&client, params("says_nothing", hello(), Value::Null)).await;
    assert_eq!(refused(&answer)["type"], "idempotency_key_required");
    let asked = json!({ "tool": "says_nothing", "arguments": hello() });
    assert_eq!(status(&client, asked).await["error"]["code"], -32602);
    // The argument that was added is one that a call must have.
    let listed = tool(&client, "has_an_argument").await;
    assert_eq!(contract(&listed)["key"], "required");
    assert_eq!(listed.input_schema["required"], json!(["text", "mine"]));
    // One that the annotation leaves optional, and one that is not there, are not.
    for name in ["says_all", "says_nothing"] {
        let listed = tool(&client, name).await;
        assert_eq!(listed.input_schema["required"], json!(["text"]), "{name}");
    }
}

#[tokio::test]
async fn two_layers_deduplicate_once() {
    fn wrapped<H: ServerHandler>(
        server: H,
        layer: IdempotencyLayer<MemoryStore>,
    ) -> impl ServerHandler {
        server.idempotent(layer)
    }

    async fn check(idempotency: &Idempotency<MemoryStore>, server: impl ServerHandler) {
        let client = connect(server).await;
        assert_eq!(send(&client, key("k")).await, 1);
        assert_eq!(send(&client, key("k")).await, 1);
        let records = idempotency.list(&RecordQuery::default()).await;
        assert_eq!(records.unwrap().len(), 1);
    }

    let (one, two) = (idempotency(), idempotency());
    let layer = |of: &Idempotency<_>| IdempotencyLayer::new(of.clone(), lease()).unwrap();
    let stack = Mailer::new()
        .idempotent(layer(&one))
        .idempotent(layer(&one));
    check(&one, stack).await;
    let nested = wrapped(Mailer::new().idempotent(layer(&two)), layer(&two));
    check(&two, nested).await;
}

/// A tool that is defined anew while the server runs.
#[derive(Clone)]
struct Changing(Arc<AtomicU32>);

impl ServerHandler for Changing {
    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        let result = rmcp::model::CallToolResult::structured(json!({ "number": number }));
        Ok(result.into())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![
            self.get_tool("send").unwrap(),
        ]))
    }

    fn get_tool(&self, _: &str) -> Option<Tool> {
        let description = match self.0.load(Ordering::SeqCst) {
            0 => "once",
            _ => "again",
        };
        Some(Tool::new("send", description, Arc::default()))
    }
}

#[tokio::test]
async fn a_list_that_passes_by_replaces_what_was_looked_up() {
    let layer = IdempotencyLayer::builder(idempotency(), Rule::untouched())
        .with_tools(
            |tool| tool.description.as_deref() == Some("again"),
            lease().with_key(KeyRequirement::Derived),
        )
        .build()
        .unwrap();
    let client = connect(Changing(Arc::default()).idempotent(layer)).await;
    let call = || call(&client, params("send", Value::Null, Value::Null));
    assert_eq!(number(&call().await), 1);
    assert_eq!(number(&call().await), 2);
    client.list_all_tools().await.unwrap();
    assert_eq!(number(&call().await), 3);
    assert_eq!(number(&call().await), 3);
}
