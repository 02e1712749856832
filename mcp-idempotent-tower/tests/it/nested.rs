//! Servers in one process: what one of them says of its call says nothing about another's.

mod unlisted;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{
    Attempt, Idempotency, IdempotencyLayer, MemoryStore, NotExecuted, OnError, ServerExt as _,
    idempotent, layer::Rule,
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    handler::server::{router::tool::ToolRouter, tool::ToolCallContext},
    model::{CallToolRequestParams, CallToolResponse},
    service::{RequestContext, ServiceError},
    tool, tool_router,
};
use serde_json::{Value, json};
use tower::layer::util::Identity;

use crate::client::{Client, connect, keyed, params};

const IN_DOUBT: &str = "io.github.mcp-idempotent/in-doubt";

const REPLAYED: &str = "io.github.mcp-idempotent/replayed";
const UPSTREAM: &str = "io.github.mcp-idempotent/upstream";

fn layer(application: &str) -> IdempotencyLayer<MemoryStore> {
    let idempotency = Idempotency::for_stdio(application, MemoryStore::new()).unwrap();
    IdempotencyLayer::new(idempotency, Rule::lease(OnError::InDoubt)).unwrap()
}

/// The other server. It acts for nobody.
#[derive(Clone)]
struct Inner;

#[tool_router(server_handler)]
impl Inner {
    #[tool]
    async fn closed(&self) -> Result<String, ErrorData> {
        Err(NotExecuted::mark(ErrorData::internal_error("closed", None)))
    }

    /// Is refused, because nothing protects it.
    #[tool]
    async fn attempts(&self, _attempt: Attempt) -> String {
        "attempted".to_owned()
    }

    #[tool]
    async fn open(&self) -> String {
        "open".to_owned()
    }
}

/// How the outer server reaches the inner one.
enum Way {
    Client(Client),
    /// In its own task, with the context of its own call.
    Direct,
    DirectLayered(IdempotencyLayer<MemoryStore>),
}

/// Acts, and then calls the other server and passes its answer on.
#[derive(Clone)]
struct Outer {
    idempotency: Idempotency<MemoryStore>,
    acted: Arc<AtomicU32>,
    way: Arc<Way>,
}

#[tool_router(server_handler)]
impl Outer {
    fn new(way: Way) -> Self {
        Self {
            idempotency: Idempotency::for_stdio("outer", MemoryStore::new()).unwrap(),
            acted: Arc::default(),
            way: Arc::new(way),
        }
    }

    fn acted(&self) -> u32 {
        self.acted.load(Ordering::SeqCst)
    }

    async fn act_and_ask(
        &self,
        tool: &'static str,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.acted.fetch_add(1, Ordering::SeqCst);
        let params = params(tool, Value::Null, Value::Null);
        match &*self.way {
            Way::Client(client) => match client.call_tool(params).await {
                Ok(result) => Ok(result.into()),
                Err(ServiceError::McpError(error)) => Err(error),
                Err(error) => panic!("no answer: {error}"),
            },
            Way::Direct => {
                let server = Inner.layered(Identity::new());
                server.call_tool(params, context).await
            }
            Way::DirectLayered(layer) => {
                let server = Inner.idempotent(layer.clone());
                server.call_tool(params, context).await
            }
        }
    }

    #[idempotent(key = explicit, on_error = in_doubt)]
    #[tool]
    async fn annotated_closed(
        &self,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.act_and_ask("closed", context).await
    }

    #[tool]
    async fn closed(
        &self,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.act_and_ask("closed", context).await
    }

    #[idempotent(key = explicit, on_error = in_doubt)]
    #[tool]
    async fn annotated_attempts(
        &self,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.act_and_ask("attempts", context).await
    }

    #[tool]
    async fn attempts(
        &self,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.act_and_ask("attempts", context).await
    }

    #[tool]
    async fn open(
        &self,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.act_and_ask("open", context).await
    }
}

fn served(outer: &Outer) -> impl ServerHandler {
    let rule = Rule::lease(OnError::InDoubt);
    let layer = IdempotencyLayer::new(outer.idempotency.clone(), rule).unwrap();
    outer.clone().idempotent(layer)
}

async fn bare_inner() -> Way {
    Way::Client(connect(Inner).await)
}

async fn layered_inner() -> Way {
    Way::Client(connect(Inner.layered(Identity::new())).await)
}

#[tokio::test]
async fn a_mark_of_another_server_in_the_process_frees_no_key() {
    for tool in ["closed", "annotated_closed"] {
        for way in [bare_inner().await, layered_inner().await, Way::Direct] {
            let outer = Outer::new(way);
            let client = connect(served(&outer)).await;
            let first = keyed(&client, tool, Value::Null).await;
            let again = keyed(&client, tool, Value::Null).await;
            let data = &again["error"]["data"];
            let in_doubt = json!({ IN_DOUBT: data });
            let closed = json!({ "code": -32603, "message": "closed", "data": in_doubt });
            assert_eq!(first, json!({ "error": closed }), "{tool}");
            assert_eq!(data["type"], "idempotency_outcome_unknown", "{again}");
            assert_eq!(outer.acted(), 1);
        }
    }
}

#[tokio::test]
async fn a_refusal_of_another_server_in_the_process_is_not_the_callers() {
    for tool in ["attempts", "annotated_attempts"] {
        for way in [bare_inner().await, layered_inner().await] {
            let outer = Outer::new(way);
            let client = connect(served(&outer)).await;
            let answer = keyed(&client, tool, Value::Null).await;
            let theirs = json!({
                "type": "idempotency_misconfigured",
                "outcome": "not_committed",
                "action": "ask_operator",
            });
            let data = &answer["error"]["data"];
            assert_eq!(data["upstream"], theirs, "{tool}: {answer}");
            assert_eq!(data[IN_DOUBT]["outcome"], "unknown", "{tool}: {answer}");
            assert_eq!(data.as_object().unwrap().len(), 2, "{tool}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_server_that_gets_the_context_of_anothers_call_answers_as_an_upstream() {
    let inner = layer("inner");
    let outer = Outer::new(Way::DirectLayered(inner.clone()));
    let client = connect(served(&outer)).await;

    // The context carries the key, so the inner server has a record of its own under it.
    let other = connect(Inner.idempotent(inner)).await;
    keyed(&other, "open", Value::Null).await;
    let answer = keyed(&client, "open", Value::Null).await;
    let meta = &answer["result"]["_meta"];
    assert!(meta[REPLAYED].is_null(), "{answer}");
    assert!(meta[UPSTREAM][REPLAYED]["at"].is_string(), "{answer}");

    let replayed = keyed(&client, "open", Value::Null).await;
    assert!(
        replayed["result"]["_meta"][REPLAYED]["at"].is_string(),
        "{replayed}"
    );
    assert_eq!(outer.acted(), 1);
}

/// Is closed at first, and remembers it.
#[derive(Clone)]
struct Forgetful {
    idempotency: Idempotency<MemoryStore>,
    acted: Arc<AtomicU32>,
    remembered: Arc<Mutex<Option<ErrorData>>>,
}

#[tool_router(server_handler)]
impl Forgetful {
    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn act(&self) -> Result<String, ErrorData> {
        let mut remembered = self.remembered.lock().unwrap();
        if let Some(error) = &*remembered {
            self.acted.fetch_add(1, Ordering::SeqCst);
            return Err(error.clone());
        }
        let error = NotExecuted::mark(ErrorData::internal_error("closed", None));
        *remembered = Some(error.clone());
        Err(error)
    }
}

#[tokio::test]
async fn a_mark_of_an_earlier_attempt_frees_no_key() {
    let server = Forgetful {
        idempotency: Idempotency::for_stdio("forgetful", MemoryStore::new()).unwrap(),
        acted: Arc::default(),
        remembered: Arc::default(),
    };
    let client = connect(server.clone()).await;
    for (acted, message) in [(0, "closed"), (1, "closed")] {
        let answer = keyed(&client, "act", Value::Null).await;
        assert_eq!(answer["error"]["message"], message);
        assert_eq!(server.acted.load(Ordering::SeqCst), acted);
    }
    let again = keyed(&client, "act", Value::Null).await;
    let data = &again["error"]["data"];
    assert_eq!(data["type"], "idempotency_outcome_unknown", "{again}");
    assert_eq!(server.acted.load(Ordering::SeqCst), 1);
}
