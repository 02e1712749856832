//! `shutdown` beside a connection that falls silent: it ends at its deadline, and before that if the call
//! ends, which it does within its own bounds.

use std::time::Duration;

use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database as _, Postgres, effect},
    kit::relay::Relay,
};
use mcp_idempotent_tower::{Attempt, Idempotency, idempotent, store::postgres::PostgresStore};
use rmcp::{ErrorData, model::CallToolRequestParams, tool, tool_router};
use serde_json::json;
use sqlx::PgConnection;

use crate::world::{Gate, engine, until, within_patience};

/// More than all waits of a call here take together, and less than the patience of these tests.
const LONG: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct Desk {
    idempotency: Idempotency<PostgresStore>,
    gate: Gate,
}

#[tool_router(server_handler)]
impl Desk {
    #[idempotent]
    #[tool]
    async fn write(&self, connection: &mut PgConnection) -> Result<String, ErrorData> {
        effect::<Postgres>(connection, "written").await.unwrap();
        self.gate.pass().await;
        Ok("written".into())
    }

    #[idempotent(on_error = in_doubt, lease = "3s", heartbeat = "1s")]
    #[tool]
    async fn act(&self, attempt: Attempt) -> Result<String, ErrorData> {
        drop(attempt);
        self.gate.pass().await;
        Ok("acted".into())
    }
}

struct Office {
    relay: Relay,
    database: Postgres,
    desk: Desk,
    client: Client,
}

impl Office {
    async fn open() -> Self {
        let database = Postgres::create().await;
        let relay = Relay::start(&database.options());
        // On connections of its own, whose first message is the claim.
        let store = PostgresStore::builder_with(relay.options(database.options()))
            .with_connections(2)
            .with_schema(database.schema())
            .with_answer_timeout(ANSWER)
            .with_recovery_timeout(ANSWER)
            .build()
            .unwrap();
        let desk = Desk {
            idempotency: engine(store).build().unwrap(),
            gate: Gate::new(),
        };
        // As a server does at start-up.
        desk.idempotency.verify_secret().await.unwrap();
        Self {
            relay,
            database,
            client: Client::of(desk.clone()).await,
            desk,
        }
    }

    /// The next message falls silent, and is awaited.
    async fn silence(&self) {
        until(async || self.relay.messages() > 0).await;
    }

    /// A handler runs at a deadline that is over, and has ended well before a later one.
    async fn shut_down(&self) {
        let shutdown = |deadline| within_patience(self.desk.idempotency.shutdown(deadline));
        let early = shutdown(Duration::ZERO).await;
        assert_eq!(early.unwrap_err().running, 1);
        shutdown(LONG).await.expect("the call is bounded");
    }
}

fn keyed(tool: &str) -> CallToolRequestParams {
    call(tool, json!({})).with_key("k")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_ends_beside_a_commit_on_a_silent_connection() {
    let office = Office::open().await;
    let sent = office.client.send(keyed("write")).await.unwrap();
    office.desk.gate.arrival().await;
    office.relay.fall_silent_at(1);
    office.desk.gate.open();
    office.silence().await;
    office.shut_down().await;
    let answer = within_patience(sent.answer()).await.unwrap();
    assert_eq!(answer.outcome(), "unknown", "{}", answer.line);
    // The server sees the end of the connection, and rolls back.
    office.relay.come_up();
    office.desk.gate.open();
    until(async || {
        let answer = office.client.call(keyed("write")).await;
        answer.json.get("result").is_some()
    })
    .await;
    assert_eq!(office.database.effects().await, ["written"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_ends_beside_a_claim_on_a_silent_connection() {
    for tool in ["write", "act"] {
        let office = Office::open().await;
        office.relay.fall_silent_at(1);
        let sent = office.client.send(keyed(tool)).await.unwrap();
        office.silence().await;
        // No handler runs yet, so there is nothing to wait for.
        let shutdown = office.desk.idempotency.shutdown(LONG);
        within_patience(shutdown).await.unwrap();
        // The claim is made again, on another connection.
        office.desk.gate.arrival().await;
        office.desk.gate.open();
        let answer = within_patience(sent.answer()).await.unwrap();
        answer.success();
        let shutdown = office.desk.idempotency.shutdown(LONG);
        within_patience(shutdown).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_ends_beside_a_renewal_on_a_silent_connection() {
    let office = Office::open().await;
    let sent = office.client.send(keyed("act")).await.unwrap();
    office.desk.gate.arrival().await;
    // The next message is the renewal.
    office.relay.fall_silent_at(1);
    office.silence().await;
    let early = office.desk.idempotency.shutdown(Duration::ZERO);
    assert_eq!(within_patience(early).await.unwrap_err().running, 1);
    office.desk.gate.open();
    let shutdown = office.desk.idempotency.shutdown(LONG);
    within_patience(shutdown)
        .await
        .expect("the call is bounded");
    let answer = within_patience(sent.answer()).await.unwrap();
    assert_eq!(answer.success(), "acted");
}
