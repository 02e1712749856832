//! One tool, through both doors and in both modes.

use std::sync::{Arc, Mutex};

use mcp_idempotent_tower::{
    Attempt, Idempotency, IdempotencyLayer, KeyRequirement, OnError, OperatorStore as _,
    RecordQuery, Scope, ServerExt as _, SqliteStore, Tx, idempotent, layer::Rule,
};
use rmcp::{
    ErrorData, ServerHandler, handler::server::tool::ToolRouter, tool, tool_handler, tool_router,
};
use serde_json::{Value, json};
use sqlx::{
    SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tempfile::TempDir;
use tokio::sync::Semaphore;

use super::store::Flaky;
use crate::client::{Client, call, connect, params};

/// Tools that write through the call's transaction.
pub(super) const WRITE: [&str; 2] = ["annotated_write", "layered_write"];
/// Tools that act outside first, and write then.
pub(super) const ACT: [&str; 2] = ["annotated_act", "layered_act"];
pub(super) const ALL: [&str; 4] = [WRITE[0], WRITE[1], ACT[0], ACT[1]];
/// Tools whose error results commit what they wrote.
pub(super) const COMMIT_ERRORS: [&str; 2] = ["annotated_commits_errors", "layered_commits_errors"];

/// What a tool does after it has written its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    Succeeds,
    FailsInItsResult,
    Panics,
    /// Keeps the transaction beyond its call.
    Holds,
    /// Writes what cannot be committed, and says that it succeeded.
    Aborts,
    /// Ends the transaction itself.
    Commits,
    /// Never returns.
    Waits,
}

#[derive(Clone)]
pub(super) struct Till {
    idempotency: Idempotency<Flaky>,
    pub(super) store: Flaky,
    does: Arc<Mutex<Does>>,
    /// The attempt of the last call in lease mode.
    pub(super) attempt: Arc<Mutex<Option<Attempt>>>,
    /// The scopes that the set-up hook saw.
    pub(super) scopes: Arc<Mutex<Vec<Option<String>>>>,
    pub(super) begun: Arc<Semaphore>,
    tool_router: ToolRouter<Self>,
    _directory: Arc<TempDir>,
}

#[tool_router]
impl Till {
    #[idempotent(key = explicit)]
    #[tool]
    async fn annotated_write(&self, tx: &mut SqliteConnection) -> Result<String, String> {
        self.write(tx).await
    }

    #[tool]
    async fn layered_write(&self, tx: Tx<Flaky>) -> Result<String, String> {
        self.write_and_maybe_hold(tx).await
    }

    #[idempotent(key = explicit, on_error = commit)]
    #[tool]
    async fn annotated_commits_errors(&self, tx: &mut SqliteConnection) -> Result<String, String> {
        self.write(tx).await
    }

    #[tool]
    async fn layered_commits_errors(&self, mut tx: Tx<Flaky>) -> Result<String, String> {
        self.write(&mut tx).await
    }

    #[idempotent(
        key = explicit,
        on_error = in_doubt,
        run_unprotected_when_store_is_unavailable = true
    )]
    #[tool]
    async fn annotated_act(&self, attempt: Attempt) -> Result<String, ErrorData> {
        self.act(attempt).await
    }

    #[tool]
    async fn layered_act(&self, attempt: Attempt) -> Result<String, ErrorData> {
        self.act(attempt).await
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Till {}

impl Till {
    pub(super) async fn open() -> Self {
        let directory = TempDir::new().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(directory.path().join("till.db"))
            .create_if_missing(true)
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal);
        let scopes = Arc::<Mutex<Vec<_>>>::default();
        let seen = Arc::clone(&scopes);
        let store = SqliteStore::builder(SqlitePool::connect_with(options).await.unwrap())
            .with_on_begin(move |_, call| {
                let scope = call.scope.as_ref().map(Scope::as_str).map(str::to_owned);
                seen.lock().unwrap().push(scope);
                Box::pin(async { Ok(()) })
            })
            .build()
            .unwrap();
        store.migrate().await.unwrap();
        sqlx::raw_sql(
            "CREATE TABLE sale (number INTEGER PRIMARY KEY AUTOINCREMENT);
             CREATE TABLE refund (sale INTEGER REFERENCES sale DEFERRABLE INITIALLY DEFERRED);",
        )
        .execute(store.pool())
        .await
        .unwrap();
        let store = Flaky::new(store);
        Self {
            idempotency: Idempotency::builder("till", store.clone())
                .with_fixed_scope("counter 7")
                .build()
                .unwrap(),
            store,
            does: Arc::new(Mutex::new(Does::Succeeds)),
            attempt: Arc::default(),
            scopes,
            begun: Arc::new(Semaphore::new(0)),
            tool_router: Self::tool_router(),
            _directory: Arc::new(directory),
        }
    }

    /// A server that has both doors.
    pub(super) fn behind_the_layer(&self) -> impl ServerHandler + Clone + use<> {
        let act =
            Rule::lease(OnError::InDoubt).with_run_unprotected_when_store_is_unavailable(true);
        let write = || Rule::transaction().with_key(KeyRequirement::Explicit);
        let layer = IdempotencyLayer::builder(self.idempotency.clone(), act)
            .with_tool("layered_write", write())
            .with_tool(
                "layered_commits_errors",
                write().with_on_error(OnError::Commit),
            )
            .build()
            .unwrap();
        self.clone().idempotent(layer)
    }

    pub(super) async fn connect(&self) -> Client {
        connect(self.behind_the_layer()).await
    }

    pub(super) fn set(&self, does: Does) {
        *self.does.lock().unwrap() = does;
    }

    pub(super) async fn sales(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM sale")
            .fetch_one(self.store.store.pool())
            .await
            .unwrap()
    }

    pub(super) async fn records(&self) -> usize {
        let records = self
            .store
            .store
            .list(&RecordQuery::default())
            .await
            .unwrap();
        records.len()
    }

    async fn write(&self, tx: &mut SqliteConnection) -> Result<String, String> {
        let does = *self.does.lock().unwrap();
        sqlx::raw_sql("INSERT INTO sale DEFAULT VALUES")
            .execute(&mut *tx)
            .await
            .unwrap();
        match does {
            Does::Succeeds | Does::Holds => {}
            Does::FailsInItsResult => return Err("declined".into()),
            Does::Panics => panic!("after it has written"),
            Does::Aborts => {
                sqlx::raw_sql("INSERT INTO refund VALUES (1000)")
                    .execute(&mut *tx)
                    .await
                    .unwrap();
            }
            Does::Commits => {
                // Whether it is let or not, the transaction is not ours any more.
                let _ = sqlx::raw_sql("COMMIT").execute(&mut *tx).await;
            }
            Does::Waits => {
                self.begun.add_permits(1);
                std::future::pending::<()>().await;
            }
        }
        Ok("sold".into())
    }

    async fn write_and_maybe_hold(&self, mut tx: Tx<Flaky>) -> Result<String, String> {
        let written = self.write(&mut tx).await;
        if *self.does.lock().unwrap() == Does::Holds {
            let begun = Arc::clone(&self.begun);
            tokio::spawn(async move {
                begun.acquire().await.unwrap().forget();
                drop(tx);
            });
        }
        written
    }

    async fn act(&self, attempt: Attempt) -> Result<String, ErrorData> {
        *self.attempt.lock().unwrap() = Some(attempt.clone());
        if *self.does.lock().unwrap() == Does::Waits {
            self.begun.add_permits(1);
            std::future::pending::<()>().await;
        }
        let tx = attempt.begin::<Flaky>().await?;
        let written = self.write_and_maybe_hold(tx).await;
        written.map_err(|error| ErrorData::internal_error(error, None))
    }
}

/// A call without a key.
pub(super) async fn unkeyed(client: &Client, tool: &'static str) -> Value {
    call(client, params(tool, json!({}), Value::Null)).await
}

pub(super) fn is_success(answer: &Value) -> bool {
    answer["result"]["isError"] == false
}
