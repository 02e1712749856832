//! Whatever code of the author's panics, the caller gets an answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, InDoubt, MemoryStore, OnError, ServerExt as _, Verdict,
    idempotent, layer::Rule,
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ClientRequest, ContentBlock,
        CustomRequest, ListToolsRequest, ListToolsResult, PaginatedRequestParams, Tool,
    },
    service::{RequestContext, ServiceError},
    tool, tool_router,
};
use serde_json::{Value, json};

use crate::client::{Client, call, connect, params, refused};

/// How long a test waits for an answer that should come at once.
const SILENCE: Duration = Duration::from_secs(20);

async fn answered(client: &Client, tool: &'static str) -> Value {
    let params = params(tool, Value::Null, json!({ "idempotency-key": "k" }));
    tokio::time::timeout(SILENCE, call(client, params))
        .await
        .expect("an answer")
}

fn assert_refused(answer: &Value, kind: &str, outcome: &str) {
    let data = refused(answer);
    assert_eq!(data["type"], kind, "{answer}");
    assert_eq!(data["outcome"], outcome, "{answer}");
}

/// Cannot be cloned while it is said to be broken.
#[derive(Default)]
struct Crack(Arc<AtomicBool>);

impl Clone for Crack {
    fn clone(&self) -> Self {
        assert!(!self.0.load(Ordering::SeqCst), "broken");
        Self(Arc::clone(&self.0))
    }
}

/// Cannot be cloned while it is said to be broken.
#[derive(Clone)]
struct Brittle {
    idempotency: Idempotency<MemoryStore>,
    crack: Crack,
    runs: Arc<AtomicU32>,
}

#[tool_router(server_handler)]
impl Brittle {
    fn new() -> Self {
        Self {
            idempotency: Idempotency::for_stdio("brittle", MemoryStore::new()).unwrap(),
            crack: Crack::default(),
            runs: Arc::default(),
        }
    }

    fn run(&self) -> String {
        let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        run.to_string()
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    fn plain(&self) -> String {
        self.run()
    }

    #[idempotent(on_error = in_doubt, key = explicit)]
    #[tool]
    fn unprotected(&self) -> String {
        self.run()
    }

    #[idempotent(on_error = in_doubt, on_doubt = verify(Self::find_out))]
    #[tool]
    fn verified(&self) -> Result<String, ErrorData> {
        Err(ErrorData::internal_error(self.run(), None))
    }

    async fn find_out(&self, _: InDoubt<'_>) -> Verdict {
        Verdict::committed("found".to_owned())
    }

    fn missing(&self) -> &Idempotency<MemoryStore> {
        panic!("not set up")
    }

    #[idempotent(on_error = in_doubt, idempotency = self.missing())]
    #[tool]
    fn without_records(&self) -> String {
        self.run()
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_cloned_answers_and_the_key_stays_free() {
    let server = Brittle::new();
    let client = connect(server.clone()).await;
    for tool in ["plain", "verified"] {
        server.crack.0.store(true, Ordering::SeqCst);
        let answer = answered(&client, tool).await;
        assert_refused(&answer, "idempotency_handler_panicked", "unknown");
        server.crack.0.store(false, Ordering::SeqCst);
    }
    let params = params("unprotected", Value::Null, Value::Null);
    server.crack.0.store(true, Ordering::SeqCst);
    let answer = tokio::time::timeout(SILENCE, call(&client, params))
        .await
        .unwrap();
    assert_refused(&answer, "idempotency_handler_panicked", "unknown");
    assert_eq!(server.runs.load(Ordering::SeqCst), 0);

    server.crack.0.store(false, Ordering::SeqCst);
    let answer = answered(&client, "plain").await;
    assert_eq!(answer["result"]["content"][0]["text"], "1", "{answer}");
}

#[tokio::test]
async fn a_server_that_cannot_be_cloned_to_verify_leaves_the_call_in_doubt() {
    let server = Brittle::new();
    let client = connect(server.clone()).await;
    answered(&client, "verified").await;
    server.crack.0.store(true, Ordering::SeqCst);
    let answer = answered(&client, "verified").await;
    assert_refused(&answer, "idempotency_outcome_unknown", "unknown");
    server.crack.0.store(false, Ordering::SeqCst);
    let answer = answered(&client, "verified").await;
    assert_eq!(answer["result"]["content"][0]["text"], "found", "{answer}");
    assert_eq!(server.runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_panic_where_the_records_are_kept_is_answered() {
    let server = Brittle::new();
    let client = connect(server.clone()).await;
    let answer = answered(&client, "without_records").await;
    assert_refused(&answer, "call_failed", "unknown");
    assert_eq!(server.runs.load(Ordering::SeqCst), 0);
}

#[cfg(feature = "sqlite")]
mod in_transaction {
    use mcp_idempotent_tower::SqliteStore;
    use sqlx::SqliteConnection;

    use super::*;

    #[derive(Clone)]
    struct Ledger {
        idempotency: Idempotency<SqliteStore>,
        _crack: Crack,
    }

    #[tool_router(server_handler)]
    impl Ledger {
        #[idempotent]
        #[tool]
        fn book(&self, _tx: &mut SqliteConnection) -> String {
            "booked".to_owned()
        }

        #[idempotent(key = explicit)]
        #[tool]
        fn unprotected(&self, _tx: &mut SqliteConnection) -> String {
            "booked".to_owned()
        }
    }

    #[tokio::test]
    async fn a_server_that_cannot_be_cloned_answers_and_rolls_back() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(directory.path().join("ledger.db"))
            .await
            .unwrap();
        let is_broken = Arc::new(AtomicBool::new(true));
        let client = connect(Ledger {
            idempotency: Idempotency::for_stdio("ledger", store).unwrap(),
            _crack: Crack(Arc::clone(&is_broken)),
        })
        .await;
        let answer = answered(&client, "book").await;
        assert_refused(&answer, "idempotency_handler_panicked", "unknown");
        let params = params("unprotected", Value::Null, Value::Null);
        let answer = tokio::time::timeout(SILENCE, call(&client, params))
            .await
            .unwrap();
        assert_refused(&answer, "idempotency_handler_panicked", "unknown");

        is_broken.store(false, Ordering::SeqCst);
        let answer = answered(&client, "book").await;
        assert_eq!(answer["result"]["content"][0]["text"], "booked", "{answer}");
    }
}

/// A handler whose definitions cannot be looked up, or whose call panics.
#[derive(Clone, Default)]
struct Fragile {
    look_up_panics: bool,
    call_panics: bool,
    runs: Arc<AtomicU32>,
}

fn act(name: &str) -> Tool {
    Tool::new(name.to_owned(), "", serde_json::Map::new())
}

impl ServerHandler for Fragile {
    fn get_tool(&self, name: &str) -> Option<Tool> {
        assert!(!self.look_up_panics, "no definition");
        Some(act(name))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![act("act")]))
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        assert!(!self.call_panics, "in the handler");
        Ok(CallToolResult::success(vec![ContentBlock::text("done")]).into())
    }
}

fn idempotency() -> Idempotency<MemoryStore> {
    Idempotency::for_stdio("fragile", MemoryStore::new()).unwrap()
}

fn lease() -> Rule<MemoryStore> {
    Rule::lease(OnError::InDoubt)
}

async fn status(client: &Client) -> ErrorData {
    let params = json!({ "key": "k", "tool": "act", "arguments": {} });
    let request = CustomRequest::new("io.github.mcp-idempotent/status", Some(params));
    let asked = client.send_request(ClientRequest::CustomRequest(request));
    match tokio::time::timeout(SILENCE, asked)
        .await
        .expect("an answer")
    {
        Err(ServiceError::McpError(error)) => error,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_panic_in_the_look_up_of_a_tool_is_answered_and_nothing_runs() {
    let handler = Fragile {
        look_up_panics: true,
        ..Fragile::default()
    };
    let layer = IdempotencyLayer::new(idempotency(), lease()).unwrap();
    let client = connect(handler.clone().idempotent(layer)).await;
    let answer = answered(&client, "act").await;
    assert_refused(&answer, "idempotency_handler_panicked", "unknown");
    assert_eq!(handler.runs.load(Ordering::SeqCst), 0);
    let refused = status(&client).await;
    assert_eq!(refused.data.unwrap()["outcome"], "unknown");
}

#[tokio::test]
async fn a_panic_in_a_predicate_of_the_layer_is_answered_and_nothing_runs() {
    let handler = Fragile::default();
    let layer = IdempotencyLayer::builder(idempotency(), lease())
        .with_tools(|tool| panic!("which rule for {}", tool.name), lease())
        .build()
        .unwrap();
    let client = connect(handler.clone().idempotent(layer)).await;
    // With and without a definition that is kept.
    for _ in 0..2 {
        let answer = answered(&client, "act").await;
        assert_refused(&answer, "idempotency_handler_panicked", "unknown");
    }
    assert_eq!(handler.runs.load(Ordering::SeqCst), 0);
    let refused = status(&client).await;
    assert_eq!(refused.data.unwrap()["outcome"], "unknown");
}

#[tokio::test]
async fn a_panic_in_a_predicate_does_not_silence_the_list_of_tools() {
    let layer = IdempotencyLayer::builder(idempotency(), lease())
        .with_tools(|tool| panic!("which rule for {}", tool.name), lease())
        .build()
        .unwrap();
    let client = connect(Fragile::default().idempotent(layer)).await;
    let list = ClientRequest::ListToolsRequest(ListToolsRequest::default());
    let listed = tokio::time::timeout(SILENCE, client.send_request(list)).await;
    let refused = listed.expect("an answer").unwrap_err();
    assert!(matches!(refused, ServiceError::McpError(_)), "{refused}");
}

#[tokio::test]
async fn a_panic_of_a_handler_that_no_layer_protects_is_answered_too() {
    let handler = Fragile {
        call_panics: true,
        ..Fragile::default()
    };
    let layer = IdempotencyLayer::new(idempotency(), Rule::untouched()).unwrap();
    let client = connect(handler.clone().idempotent(layer)).await;
    let answer = answered(&client, "act").await;
    assert_refused(&answer, "call_failed", "unknown");
    assert_eq!(handler.runs.load(Ordering::SeqCst), 1);
}
