//! Calls that are answered with the handle of a task.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tests::database::{Database as _, Postgres, Stored, effect};
use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, LayeredServer, ServerExt as _, ToolService, Tx, layer::Rule,
    store::postgres::PostgresStore, wire,
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolResponse, CreateTaskResult, GetTaskParams, GetTaskResult, ServerCapabilities,
        ServerConfig,
    },
    service::RequestContext,
    tool, tool_handler, tool_router,
};
use serde_json::{Value, json};

use super::site::{REVISIONS, Served, Site};
use crate::world::engine;

/// Takes orders for later: what is to be done is written in the call's transaction.
#[derive(Debug, Clone, Default)]
struct Kitchen {
    runs: Arc<AtomicU32>,
}

fn task(id: &str, result_type: &str) -> Value {
    json!({
        "resultType": result_type, "taskId": id, "status": "working", "ttlMs": 60_000,
        "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z",
    })
}

#[tool_router]
impl Kitchen {
    /// Cooks, later.
    #[tool]
    async fn cook(&self, mut tx: Tx<PostgresStore>) -> Result<CallToolResponse, ErrorData> {
        let number = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        let id = format!("task-{number}");
        effect::<Postgres>(&mut tx, &id).await.unwrap();
        let created: CreateTaskResult = serde_json::from_value(task(&id, "task")).unwrap();
        Ok(CallToolResponse::Task(created))
    }
}

#[tool_handler]
impl ServerHandler for Kitchen {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_tasks();
        ServerConfig::new(capabilities.build())
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        Ok(serde_json::from_value(task(&request.task_id, "complete")).unwrap())
    }
}

impl Kitchen {
    fn behind(
        &self,
        idempotency: &Idempotency<PostgresStore>,
    ) -> LayeredServer<Self, impl ToolService> {
        let layer = IdempotencyLayer::new(idempotency.clone(), Rule::transaction()).unwrap();
        self.clone().idempotent(layer)
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

/// What a client declares that knows tasks.
fn knows_tasks() -> Value {
    json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } })
}

/// The handle, as rmcp's own reader takes it.
fn handle(answer: &Value) -> CreateTaskResult {
    serde_json::from_value(answer["result"].clone())
        .unwrap_or_else(|error| panic!("{error}: {answer}"))
}

fn is_replay(answer: &Value) -> bool {
    answer["result"]["_meta"].get(wire::REPLAYED).is_some()
}

#[tokio::test]
async fn a_retry_under_another_revision_gets_the_first_calls_task() {
    let database = Postgres::create().await;
    let mut keys = 0;
    for served in [Served::InSessions, Served::AsJson, Served::AsEvents] {
        // Retries come to another instance.
        let kitchens = [Kitchen::default(), Kitchen::default()];
        let mut sites = Vec::new();
        for kitchen in &kitchens {
            let idempotency = engine(database.store(4)).build().unwrap();
            sites.push(Site::of(kitchen.behind(&idempotency), served).await);
        }
        // Without sessions the older revisions have no place to declare tasks in.
        let can_declare =
            |revision: &&str| served.has_session(revision) || *revision == super::site::MODERN;
        for first in REVISIONS.into_iter().filter(can_declare) {
            for second in REVISIONS.into_iter().filter(can_declare) {
                let case = (served, first, second);
                let key = format!("{served:?}-{first}-{second}");
                let caller = sites[0].caller_with(first, knows_tasks()).await;
                let body = caller.call(1, "cook", &json!({}), &key);
                let answer = caller.answer(&body).await;
                let created = handle(&answer);
                assert!(!is_replay(&answer), "{case:?}: {answer}");

                let caller = sites[1].caller_with(second, knows_tasks()).await;
                let body = caller.call(2, "cook", &json!({}), &key);
                let answer = caller.answer(&body).await;
                let again = handle(&answer);
                assert!(is_replay(&answer), "{case:?}: {answer}");
                assert_eq!(again.task, created.task, "{case:?}");
                keys += 1;
                // The handle leads to the task.
                let asked = caller.ask(3, "tasks/get", json!({ "taskId": again.task.task_id }));
                let answer = caller.answer(&asked).await;
                assert_eq!(answer["result"]["taskId"], again.task.task_id, "{answer}");
            }
        }
        assert_eq!(kitchens[1].runs(), 0, "{served:?}");
    }
    // One effect for each key, committed with its record.
    assert_eq!(keys, 9 + 1 + 1);
    assert_eq!(database.effects().await.len(), keys);
    assert_eq!(database.records().await, vec![Stored::Completed; keys]);
}

#[tokio::test]
async fn a_client_that_knows_no_tasks_is_told_so_and_its_call_stays_one() {
    for revision in REVISIONS {
        let database = Postgres::create().await;
        let idempotency = engine(database.store(4)).build().unwrap();
        let kitchen = Kitchen::default();
        let site = Site::of(kitchen.behind(&idempotency), Served::InSessions).await;
        // rmcp answers so whatever the tool did: the handle is of no use to this client.
        for id in 1..=2 {
            let caller = site.caller(revision).await;
            let answer = caller
                .answer(&caller.call(id, "cook", &json!({}), "k"))
                .await;
            assert_eq!(answer["error"]["code"], -32021, "{revision}: {answer}");
        }
        assert_eq!(kitchen.runs(), 1, "{revision}");
        assert_eq!(database.effects().await, ["task-1"]);
        // The same call of one that knows them gets it.
        let caller = site.caller_with(revision, knows_tasks()).await;
        let answer = caller
            .answer(&caller.call(3, "cook", &json!({}), "k"))
            .await;
        assert_eq!(handle(&answer).task.task_id, "task-1");
        assert!(is_replay(&answer), "{answer}");
    }
}
