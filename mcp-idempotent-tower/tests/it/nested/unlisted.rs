//! A server that lists none of its tools, whose tool is annotated and behind the layer.

use super::*;

#[derive(Clone)]
struct Unlisted {
    idempotency: Idempotency<MemoryStore>,
    acted: Arc<AtomicU32>,
}

#[tool_router]
impl Unlisted {
    #[idempotent(key = explicit, on_error = in_doubt)]
    #[tool]
    async fn act(&self, attempt: Attempt) -> String {
        assert!(attempt.token().is_some());
        let acted = self.acted.fetch_add(1, Ordering::SeqCst) + 1;
        acted.to_string()
    }

    #[idempotent(key = explicit, on_error = in_doubt)]
    #[tool]
    async fn closed(&self) -> Result<String, ErrorData> {
        self.acted.fetch_add(1, Ordering::SeqCst);
        Err(NotExecuted::mark(ErrorData::internal_error("closed", None)))
    }
}

impl ServerHandler for Unlisted {
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        routed(self, &Self::tool_router(), request, context).await
    }
}

/// Calls a tool as a server does that lists no tools.
async fn routed<S: Send + Sync + 'static>(
    server: &S,
    router: &ToolRouter<S>,
    request: CallToolRequestParams,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let call = ToolCallContext::new(server, request, context);
    router.call(call).await
}

/// Two calls with one key: the second is a replay.
async fn runs_once(client: &Client, tool: &'static str, text: &str) {
    for is_replay in [false, true] {
        let answer = keyed(client, tool, Value::Null).await;
        assert_eq!(answer["result"]["content"][0]["text"], text, "{answer}");
        let marker = &answer["result"]["_meta"][REPLAYED];
        assert_eq!(marker["at"].is_string(), is_replay, "{answer}");
    }
}

#[tokio::test]
async fn an_annotated_tool_that_its_server_does_not_list_is_deduplicated_once() {
    let idempotency = Idempotency::for_stdio("unlisted", MemoryStore::new()).unwrap();
    let server = Unlisted {
        idempotency: idempotency.clone(),
        acted: Arc::default(),
    };
    let layer = IdempotencyLayer::new(idempotency, Rule::lease(OnError::InDoubt)).unwrap();
    let client = connect(server.clone().idempotent(layer)).await;
    runs_once(&client, "act", "1").await;
    assert_eq!(server.acted.load(Ordering::SeqCst), 1);

    let key = json!({ "idempotency-key": "another" });
    for _ in 0..2 {
        let params = params("closed", Value::Null, key.clone());
        let answer = crate::client::call(&client, params).await;
        let closed = json!({ "error": { "code": -32603, "message": "closed" } });
        assert_eq!(answer, closed);
    }
    assert_eq!(server.acted.load(Ordering::SeqCst), 3);
}

#[cfg(feature = "sqlite")]
mod in_transaction {
    use mcp_idempotent_tower::{SqliteStore, layer::IdempotencyLayer};
    use sqlx::SqliteConnection;

    use super::*;

    #[derive(Clone)]
    struct Ledger {
        idempotency: Idempotency<SqliteStore>,
    }

    #[tool_router]
    impl Ledger {
        #[idempotent]
        #[tool]
        async fn book(&self, tx: &mut SqliteConnection) -> Result<String, ErrorData> {
            let booked = sqlx::query("INSERT INTO entry DEFAULT VALUES")
                .execute(tx)
                .await;
            booked.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
            Ok("booked".to_owned())
        }
    }

    impl ServerHandler for Ledger {
        async fn call_tool(
            &self,
            request: CallToolRequestParams,
            context: RequestContext<RoleServer>,
        ) -> Result<CallToolResponse, ErrorData> {
            routed(self, &Self::tool_router(), request, context).await
        }
    }

    #[tokio::test]
    async fn an_unlisted_tool_writes_through_the_transaction_of_the_layer() {
        for rule in [Rule::transaction(), Rule::lease(OnError::InDoubt)] {
            let directory = tempfile::tempdir().unwrap();
            let store = SqliteStore::open(directory.path().join("ledger.db"))
                .await
                .unwrap();
            let pool = store.pool().clone();
            sqlx::query("CREATE TABLE entry (id INTEGER PRIMARY KEY)")
                .execute(&pool)
                .await
                .unwrap();
            let idempotency = Idempotency::for_stdio("ledger", store).unwrap();
            let layer = IdempotencyLayer::new(idempotency.clone(), rule).unwrap();
            let client = connect(Ledger { idempotency }.idempotent(layer)).await;
            runs_once(&client, "book", "booked").await;
            let entries: i64 = sqlx::query_scalar("SELECT count(*) FROM entry")
                .fetch_one(&pool)
                .await
                .unwrap();
            assert_eq!(entries, 1);
        }
    }
}
