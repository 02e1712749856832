//! Handlers that hang while the server ends the session of their transaction, through both doors and in
//! both modes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use futures_util::future::join_all;
use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database as _, Postgres, effect},
};
use mcp_idempotent_tower::{
    Attempt, Idempotency, IdempotencyLayer, KeyRequirement, OnError, ServerExt as _, Tx,
    idempotent, layer::Rule, store::postgres::PostgresStore,
};
use rmcp::{ErrorData, RoleServer, service::RequestContext, tool, tool_router};
use serde_json::json;
use sqlx::PgConnection;
use tokio::sync::mpsc;

use crate::world::{engine, within_patience};

#[derive(Clone)]
struct Desk {
    idempotency: Idempotency<PostgresStore>,
    /// The sessions of handlers that hang.
    hanging: mpsc::UnboundedSender<i64>,
    /// How many handlers were told to stop.
    told: Arc<AtomicUsize>,
}

#[tool_router(server_handler)]
impl Desk {
    #[idempotent(key = explicit)]
    #[tool]
    async fn annotated_write(
        &self,
        connection: &mut PgConnection,
        context: RequestContext<RoleServer>,
    ) -> Result<String, ErrorData> {
        self.hang(connection, context).await
    }

    #[idempotent(key = explicit, on_error = in_doubt)]
    #[tool]
    async fn annotated_act(
        &self,
        attempt: Attempt,
        context: RequestContext<RoleServer>,
    ) -> Result<String, ErrorData> {
        self.act(attempt, context).await
    }

    #[tool]
    async fn layered_write(
        &self,
        mut tx: Tx<PostgresStore>,
        context: RequestContext<RoleServer>,
    ) -> Result<String, ErrorData> {
        self.hang(&mut tx, context).await
    }

    #[tool]
    async fn layered_act(
        &self,
        attempt: Attempt,
        context: RequestContext<RoleServer>,
    ) -> Result<String, ErrorData> {
        self.act(attempt, context).await
    }
}

impl Desk {
    async fn act(
        &self,
        attempt: Attempt,
        context: RequestContext<RoleServer>,
    ) -> Result<String, ErrorData> {
        let mut tx = attempt.begin::<PostgresStore>().await?;
        self.hang(&mut tx, context).await
    }

    async fn hang(
        &self,
        connection: &mut PgConnection,
        context: RequestContext<RoleServer>,
    ) -> Result<String, ErrorData> {
        effect::<Postgres>(connection, "in vain").await.unwrap();
        let session = sqlx::query_scalar("SELECT pg_backend_pid()::bigint");
        let session = session.fetch_one(connection).await.unwrap();
        self.hanging.send(session).unwrap();
        context.ct.cancelled().await;
        self.told.fetch_add(1, SeqCst);
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_hangs_while_its_session_ends_is_told_and_its_caller_hears_the_truth() {
    const NOT_COMMITTED: [&str; 3] = [
        "idempotency_not_committed",
        "not_committed",
        "retry_same_key",
    ];
    let unknown = |action| ["idempotency_outcome_unknown", "unknown", action];
    let database = Postgres::create().await;
    let (hanging, mut sessions) = mpsc::unbounded_channel();
    let desk = Desk {
        idempotency: engine(database.store(16)).build().unwrap(),
        hanging,
        told: Arc::default(),
    };
    let act = Rule::lease(OnError::InDoubt)
        .with_key(KeyRequirement::Explicit)
        .with_rerun_in_doubt();
    let write = Rule::transaction().with_key(KeyRequirement::Explicit);
    let layer = IdempotencyLayer::builder(desk.idempotency.clone(), act)
        .with_tool("layered_write", write)
        .build()
        .unwrap();
    let client = Client::of(desk.clone().idempotent(layer)).await;
    // Without a key, a retry of what acted outside would not find out.
    let cases = [
        ("annotated_write", true, NOT_COMMITTED),
        ("annotated_write", false, NOT_COMMITTED),
        ("layered_write", true, NOT_COMMITTED),
        ("layered_write", false, NOT_COMMITTED),
        ("annotated_act", true, unknown("ask_operator")),
        ("annotated_act", false, unknown("ask_operator")),
        ("layered_act", true, unknown("retry_same_key")),
        ("layered_act", false, unknown("ask_operator")),
    ];
    let calls = cases.map(|(tool, keyed, expected)| {
        let params = call(tool, json!({}));
        let params = if keyed { params.with_key(tool) } else { params };
        let client = &client;
        async move { (tool, keyed, expected, client.call(params).await) }
    });
    let ends = async {
        for _ in cases {
            let session = within_patience(sessions.recv()).await.unwrap();
            let end = format!("SELECT pg_terminate_backend({session}::int)::int::bigint");
            assert_eq!(database.integer(&end).await, 1);
        }
    };
    let (answers, ()) = tokio::join!(within_patience(join_all(calls)), ends);
    for (tool, keyed, expected, answer) in answers {
        let data = answer.refused();
        let told = ["type", "outcome", "action"].map(|name| data[name].as_str().unwrap());
        assert_eq!(told, expected, "{tool}, keyed: {keyed}: {}", answer.line);
    }
    assert_eq!(desk.told.load(SeqCst), cases.len(), "each is told");
    assert!(database.effects().await.is_empty());
}
