//! Tools whose services write through a `CallPool`, on a real SQLite file.

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use mcp_idempotent_tower::{
    CallPool, Idempotency, MemoryStore, ServerExt as _, idempotent,
    layer::{IdempotencyLayer, Rule},
    store::sqlite::SqliteStore,
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler as _,
    handler::server::wrapper::Parameters,
    model::{CallToolRequestParams, CallToolResponse},
    service::RequestContext,
    tool, tool_router,
};
use serde_json::{Value, json};
use sqlx::{Row as _, SqliteConnection};
use tempfile::TempDir;
use tokio::sync::Notify;

use crate::client::{Client, call, connect, keyed, params, refused};

type Pool = CallPool<SqliteStore>;

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Booking {
    amount: i64,
    #[serde(default)]
    fails: bool,
}

#[derive(Clone)]
struct Ledger {
    idempotency: Idempotency<SqliteStore>,
    mailer: Mailer,
    pool: Pool,
    /// A pool to another database.
    other: Pool,
    release: Arc<Notify>,
}

async fn open(directory: &TempDir, name: &str) -> SqliteStore {
    let store = SqliteStore::open(directory.path().join(name))
        .await
        .unwrap();
    sqlx::raw_sql("CREATE TABLE entry (amount INTEGER); CREATE TABLE total (amount INTEGER); INSERT INTO total VALUES (0)")
        .execute(store.pool())
        .await
        .unwrap();
    store
}

/// Services, as they were written for `&SqlitePool`.
async fn book(pool: &Pool, amount: i64) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO entry VALUES (?)")
        .bind(amount)
        .execute(pool)
        .await?;
    let mut transaction = pool.begin().await?;
    sqlx::query("UPDATE total SET amount = amount + ?")
        .bind(amount)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await
}

async fn number(pool: &Pool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

async fn entries(pool: &Pool) -> i64 {
    number(pool, "SELECT count(*) FROM entry").await
}

async fn total(pool: &Pool) -> i64 {
    number(pool, "SELECT amount FROM total").await
}

fn broken(error: sqlx::Error) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

async fn book_and_count(pool: &Pool, booking: Booking) -> Result<String, ErrorData> {
    book(pool, booking.amount).await.map_err(broken)?;
    if booking.fails {
        return Err(ErrorData::internal_error("too late", None));
    }
    Ok(entries(pool).await.to_string())
}

/// A server that knows nothing of idempotency but its pool's type.
struct Plain {
    pool: Pool,
}

#[tool_router(server_handler)]
impl Plain {
    #[tool]
    async fn book(&self, Parameters(booking): Parameters<Booking>) -> Result<String, ErrorData> {
        book_and_count(&self.pool, booking).await
    }
}

#[tool_router(server_handler)]
impl Ledger {
    async fn open(directory: &TempDir) -> Self {
        let store = open(directory, "ledger.db").await;
        let other = open(directory, "other.db").await;
        Self {
            pool: CallPool::new(store.clone(), store.pool().clone()),
            other: CallPool::new(other.clone(), other.pool().clone()),
            mailer: Mailer {
                idempotency: Idempotency::for_stdio("mails", MemoryStore::new()).unwrap(),
                pool: CallPool::new(store.clone(), store.pool().clone()),
            },
            idempotency: Idempotency::for_stdio("ledger", store).unwrap(),
            release: Arc::default(),
        }
    }

    #[idempotent(transaction)]
    #[tool]
    async fn book(&self, Parameters(booking): Parameters<Booking>) -> Result<String, ErrorData> {
        book_and_count(&self.pool, booking).await
    }

    #[idempotent(transaction)]
    #[tool]
    async fn take_one_back(&self) -> Result<String, ErrorData> {
        book(&self.pool, 1).await.map_err(broken)?;
        let mut transaction = self.pool.begin().await.map_err(broken)?;
        sqlx::query("DELETE FROM entry")
            .execute(&mut *transaction)
            .await
            .map_err(broken)?;
        transaction.rollback().await.map_err(broken)?;
        let mut dropped = self.pool.begin().await.map_err(broken)?;
        sqlx::query("DELETE FROM entry")
            .execute(&mut *dropped)
            .await
            .map_err(broken)?;
        drop(dropped);
        Ok(entries(&self.pool).await.to_string())
    }

    #[idempotent(transaction)]
    #[tool]
    async fn look_from_elsewhere(
        &self,
        context: RequestContext<RoleServer>,
    ) -> Result<String, ErrorData> {
        book(&self.pool, 1).await.map_err(broken)?;
        let pool = self.pool.clone();
        let spawned = tokio::spawn(async move { entries(&pool).await });
        let spawned = spawned.await.unwrap();
        let look = CallToolRequestParams::new("look");
        let lease = self.mailer.call_tool(look, context).await?;
        let CallToolResponse::Complete(lease) = lease else {
            panic!("{lease:?}");
        };
        let lease = lease.content[0].as_text().unwrap().text.clone();
        let other = entries(&self.other).await;
        let plain: i64 = sqlx::query_scalar("SELECT count(*) FROM entry")
            .fetch_one(self.pool.plain())
            .await
            .map_err(broken)?;
        let own = entries(&self.pool).await;
        Ok(format!(
            "spawned {spawned}, lease {lease}, other {other}, plain {plain}, own {own}"
        ))
    }

    #[idempotent(transaction)]
    #[tool]
    async fn read_and_write(&self) -> Result<String, ErrorData> {
        book(&self.pool, 1).await.map_err(broken)?;
        let mut rows = sqlx::query("SELECT amount FROM entry UNION ALL SELECT 7").fetch(&self.pool);
        let first: i64 = rows.try_next().await.map_err(broken)?.unwrap().get(0);
        tokio::time::pause();
        let second = sqlx::query("INSERT INTO entry VALUES (8)").execute(&self.pool);
        let error = second.await.unwrap_err().to_string();
        tokio::time::resume();
        drop(rows);
        Ok(format!("{first}: {error}"))
    }

    #[idempotent]
    #[tool]
    async fn both(&self, _tx: &mut SqliteConnection) -> Result<String, ErrorData> {
        let error = book(&self.pool, 1).await.unwrap_err();
        Ok(error.to_string())
    }

    #[idempotent(transaction)]
    #[tool]
    async fn keep_it(&self) -> Result<String, ErrorData> {
        let connection = self.pool.acquire().await.map_err(broken)?;
        let release = Arc::clone(&self.release);
        tokio::spawn(async move {
            release.notified().await;
            drop(connection);
        });
        Ok("kept".into())
    }
}

/// A server whose tools run in lease mode.
#[derive(Clone)]
struct Mailer {
    idempotency: Idempotency<MemoryStore>,
    pool: Pool,
}

#[tool_router(server_handler)]
impl Mailer {
    #[idempotent(on_error = release)]
    #[tool]
    async fn look(&self) -> String {
        entries(&self.pool).await.to_string()
    }
}

/// The text that a call without a key returns.
async fn text(client: &Client, tool: &'static str, arguments: Value) -> String {
    let answer = call(client, params(tool, arguments, Value::Null)).await;
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn what_services_write_commits_with_the_call_and_once() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    for _ in 0..5 {
        assert_eq!(text(&client, "book", json!({ "amount": 7 })).await, "1");
    }
    assert_eq!(entries(&ledger.pool).await, 1);
    assert_eq!(total(&ledger.pool).await, 7);
}

#[tokio::test]
async fn what_services_committed_is_rolled_back_with_a_call_that_fails() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    let arguments = json!({ "amount": 7, "fails": true });
    let answer = call(&client, params("book", arguments, Value::Null)).await;
    assert_eq!(answer["error"]["message"], "too late", "{answer}");
    assert_eq!(entries(&ledger.pool).await, 0);
    assert_eq!(total(&ledger.pool).await, 0);
}

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_or_dropped_undoes_only_what_followed_it() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    assert_eq!(text(&client, "take_one_back", Value::Null).await, "1");
    assert_eq!(entries(&ledger.pool).await, 1);
}

#[tokio::test]
async fn spawned_tasks_lease_mode_other_stores_and_the_plain_pool_do_not_see_the_calls_writes() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    let counts = text(&client, "look_from_elsewhere", Value::Null).await;
    assert_eq!(counts, "spawned 0, lease 0, other 0, plain 0, own 1");
    assert_eq!(entries(&ledger.pool).await, 1);
}

#[tokio::test]
async fn a_statement_beside_an_open_stream_of_the_same_call_fails_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    let said = text(&client, "read_and_write", Value::Null).await;
    assert!(said.contains("read a stream to its end"), "{said}");
    assert_eq!(entries(&ledger.pool).await, 1);
}

#[tokio::test]
async fn a_handler_that_holds_the_transaction_as_a_parameter_is_told_to_use_that() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    let said = text(&client, "both", Value::Null).await;
    assert!(said.contains("write through that parameter"), "{said}");
    assert_eq!(entries(&ledger.pool).await, 0);
}

#[tokio::test]
async fn a_connection_that_outlives_its_handler_leaves_the_outcome_unknown_and_nothing_committed() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    let answer = call(&client, params("keep_it", Value::Null, Value::Null)).await;
    assert_eq!(refused(&answer)["outcome"], "unknown", "{answer}");
    ledger.release.notify_one();
    // Waits until the writer is free again.
    assert_eq!(text(&client, "book", json!({ "amount": 7 })).await, "1");
}

#[tokio::test]
async fn behind_the_layer_services_write_in_the_calls_transaction_too() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, "ledger.db").await;
    let pool = CallPool::new(store.clone(), store.pool().clone());
    let idempotency = Idempotency::for_stdio("ledger", store).unwrap();
    let layer = IdempotencyLayer::new(idempotency, Rule::transaction()).unwrap();
    let client = connect(Plain { pool: pool.clone() }.idempotent(layer)).await;
    for _ in 0..3 {
        let answer = keyed(&client, "book", json!({ "amount": 7 })).await;
        assert_eq!(answer["result"]["content"][0]["text"], "1", "{answer}");
    }
    let answer = call(
        &client,
        params(
            "book",
            json!({ "amount": 8, "fails": true }),
            json!({ "idempotency-key": "another" }),
        ),
    )
    .await;
    assert_eq!(answer["error"]["message"], "too late", "{answer}");
    assert_eq!(entries(&pool).await, 1);
}
