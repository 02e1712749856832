//! What a handler's end means in lease mode, and for those who wait for it.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{Idempotency, MemoryStore, NotExecuted, idempotent};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    handler::server::tool::{ToolCallContext, ToolName},
    model::{CallToolRequestParams, CallToolResponse},
    service::RequestContext,
    tool, tool_handler, tool_router,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};

use crate::client::{Client, call, connect, params, refusal, until};

#[derive(Clone)]
struct Server {
    idempotency: Idempotency<MemoryStore>,
    state: Arc<State>,
}

struct State {
    runs: AtomicU32,
    /// Lets `slow` end.
    gate: Semaphore,
    /// Makes the server drop the call that it is in.
    give_up: Notify,
}

#[tool_router]
impl Server {
    fn new() -> Self {
        Self {
            idempotency: Idempotency::for_stdio("outcomes", MemoryStore::new()).unwrap(),
            state: Arc::new(State {
                runs: AtomicU32::new(0),
                gate: Semaphore::new(0),
                give_up: Notify::new(),
            }),
        }
    }

    fn run(&self) -> u32 {
        self.state.runs.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn runs(&self) -> u32 {
        self.state.runs.load(Ordering::SeqCst)
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn in_doubt(&self) -> Result<String, ErrorData> {
        Err(ErrorData::internal_error(self.run().to_string(), None))
    }

    #[idempotent(on_error = release)]
    #[tool]
    async fn release(&self) -> Result<String, ErrorData> {
        Err(ErrorData::internal_error(self.run().to_string(), None))
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    fn not_executed(&self) -> Result<String, ErrorData> {
        let data = Some(json!({ "run": self.run() }));
        Err(NotExecuted::mark(ErrorData::invalid_params("no", data)))
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn failed(&self) -> Result<String, String> {
        Err(self.run().to_string())
    }

    #[idempotent(on_error = release)]
    #[tool]
    async fn panics(&self) -> String {
        panic!("run {}", self.run())
    }

    #[idempotent(on_error = release)]
    #[tool]
    fn panics_at_once(&self, ToolName(_): ToolName) {
        panic!("run {}", self.run())
    }

    #[idempotent(key = explicit, on_error = release)]
    #[tool]
    async fn panics_without_key(&self) -> String {
        panic!("run {}", self.run())
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn slow(&self) -> String {
        let run = self.run();
        self.state.gate.acquire().await.unwrap().forget();
        run.to_string()
    }

    #[idempotent(on_error = in_doubt, wait = reject)]
    #[tool]
    async fn impatient(&self) -> String {
        self.slow_unprotected().await
    }
}

#[tool_handler]
impl ServerHandler for Server {
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let router = Self::tool_router();
        let call = router.call(ToolCallContext::new(self, request, context));
        tokio::select! {
            response = call => response,
            () = self.state.give_up.notified() => Err(ErrorData::internal_error("gave up", None)),
        }
    }
}

/// How long a test waits for an answer that should come at once.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(20);

async fn keyed(client: &Client, tool: &'static str) -> Value {
    call(
        client,
        params(tool, Value::Null, json!({ "idempotency-key": tool })),
    )
    .await
}

async fn unkeyed(client: &Client, tool: &'static str) -> Value {
    call(client, params(tool, Value::Null, Value::Null)).await
}

#[tokio::test]
async fn an_error_that_proves_nothing_leaves_the_call_in_doubt() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    let first = keyed(&client, "in_doubt").await;
    assert_eq!(first["error"]["message"], "1");
    let retry = keyed(&client, "in_doubt").await;
    assert_eq!(
        retry["error"]["data"]["type"], "idempotency_outcome_unknown",
        "{retry}"
    );
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn an_error_that_releases_lets_a_retry_run() {
    let client = connect(Server::new()).await;
    assert_eq!(keyed(&client, "release").await["error"]["message"], "1");
    assert_eq!(keyed(&client, "release").await["error"]["message"], "2");
}

#[tokio::test]
async fn an_error_marked_as_not_executed_frees_the_key_and_is_sent_without_the_mark() {
    let client = connect(Server::new()).await;
    for run in [1, 2] {
        let answer = keyed(&client, "not_executed").await;
        let expected = json!({ "code": -32602, "message": "no", "data": { "run": run } });
        assert_eq!(answer["error"], expected);
    }
}

#[tokio::test]
async fn a_failed_result_is_kept_under_an_explicit_key_and_in_doubt_under_a_derived_one() {
    let client = connect(Server::new()).await;
    for _ in 0..2 {
        let answer = keyed(&client, "failed").await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert_eq!(answer["result"]["content"][0]["text"], "1", "{answer}");
    }
    let first = unkeyed(&client, "failed").await;
    assert_eq!(first["result"]["content"][0]["text"], "2", "{first}");
    let retry = unkeyed(&client, "failed").await;
    assert_eq!(refusal(&retry), ("idempotency_outcome_unknown", "unknown"));
}

#[tokio::test]
async fn a_panic_is_answered_and_leaves_the_call_in_doubt() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    for tool in ["panics", "panics_at_once"] {
        let answer = keyed(&client, tool).await;
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        let data = &answer["error"]["data"];
        assert_eq!(data["type"], "idempotency_handler_panicked", "{answer}");
        assert_eq!(data["outcome"], "unknown", "{answer}");
        let retry = keyed(&client, tool).await;
        assert_eq!(
            retry["error"]["data"]["type"], "idempotency_outcome_unknown",
            "{retry}"
        );
    }
    assert_eq!(server.runs(), 2);
}

#[tokio::test]
async fn a_panic_of_a_call_without_protection_is_answered_too() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    let call = unkeyed(&client, "panics_without_key");
    let answer = tokio::time::timeout(SILENCE, call).await.unwrap();
    let expected = ("idempotency_handler_panicked", "unknown");
    assert_eq!(refusal(&answer), expected);
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_panic_before_the_handler_is_answered_and_nothing_runs() {
    let builder = || Idempotency::builder("outcomes", MemoryStore::new());
    for idempotency in [
        builder().with_scope_from(|_| panic!("no scope")),
        builder()
            .with_one_caller()
            .with_authorize(|_, _| panic!("no authorization")),
        builder()
            .with_one_caller()
            .with_authorize(|_, _| Box::pin(async { panic!("no authorization") })),
    ] {
        let mut server = Server::new();
        server.idempotency = idempotency.build().unwrap();
        let client = connect(server.clone()).await;
        let answer = tokio::time::timeout(SILENCE, keyed(&client, "failed"))
            .await
            .unwrap();
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        let data = &answer["error"]["data"];
        assert_eq!(data["type"], "idempotency_handler_panicked", "{answer}");
        // An earlier call with the key may have committed.
        assert_eq!(data["outcome"], "unknown", "{answer}");
        assert_eq!(server.runs(), 0);
    }
}

#[tokio::test]
async fn a_second_caller_joins_and_gets_the_first_result() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    let release = async {
        until(|| server.idempotency.engine().waiting() == 2).await;
        server.state.gate.add_permits(1);
    };
    let (one, two, three, ()) = tokio::join!(
        keyed(&client, "slow"),
        keyed(&client, "slow"),
        keyed(&client, "slow"),
        release
    );
    let mut markers = 0;
    for answer in [one, two, three] {
        assert_eq!(answer["result"]["content"][0]["text"], "1", "{answer}");
        let meta = &answer["result"]["_meta"];
        markers += u32::from(meta["io.github.mcp-idempotent/replayed"]["at"].is_string());
    }
    assert_eq!(markers, 2);
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_second_caller_that_does_not_wait_is_told_at_once() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    let second = async {
        until(|| server.runs() == 1).await;
        let answer = keyed(&client, "impatient").await;
        server.state.gate.add_permits(1);
        answer
    };
    let (first, second) = tokio::join!(keyed(&client, "impatient"), second);
    assert_eq!(first["result"]["content"][0]["text"], "1", "{first}");
    assert_eq!(
        second["error"]["data"]["type"], "idempotency_key_in_progress",
        "{second}"
    );
}

#[tokio::test]
async fn an_execution_goes_on_when_its_caller_is_dropped() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    let give_up = async {
        until(|| server.runs() == 1).await;
        server.state.give_up.notify_one();
    };
    let (first, ()) = tokio::join!(keyed(&client, "slow"), give_up);
    assert_eq!(first["error"]["message"], "gave up", "{first}");

    server.state.gate.add_permits(1);
    let retry = keyed(&client, "slow").await;
    assert_eq!(retry["result"]["content"][0]["text"], "1", "{retry}");
    assert_eq!(server.runs(), 1);
}
