//! Whose call it is: said when the server is built, and asked of every call.

mod building;
mod denied;
mod listener;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{
    Attempt, Idempotency, IdempotencyBuilder, IdempotencyLayer, OnError, Scope, ServerExt as _,
    SqliteStore, Tx, idempotent, layer::Rule,
};
use rmcp::{
    ErrorData, ServerHandler, handler::server::tool::ToolRouter, tool, tool_handler, tool_router,
};
use sqlx::{
    SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tempfile::TempDir;

/// The tools, over both doors and in both modes. Each opens a transaction, and none needs a key.
const TOOLS: [&str; 4] = [
    "annotated_write",
    "annotated_act",
    "layered_write",
    "layered_act",
];

#[derive(Clone)]
struct Desk {
    idempotency: Idempotency<SqliteStore>,
    runs: Arc<AtomicU32>,
    /// The scopes that the set-up hook saw.
    seen: Arc<Mutex<Vec<Option<String>>>>,
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Desk {
    #[idempotent(key = explicit)]
    #[tool]
    async fn annotated_write(&self, _tx: &mut SqliteConnection) -> String {
        self.run()
    }

    #[idempotent(key = explicit, on_error = in_doubt)]
    #[tool]
    async fn annotated_act(&self, attempt: Attempt) -> Result<String, ErrorData> {
        let _tx = attempt.begin::<SqliteStore>().await?;
        Ok(self.run())
    }

    #[idempotent(key = required)]
    #[tool]
    async fn keyed_write(&self, _tx: &mut SqliteConnection) -> String {
        self.run()
    }

    #[tool]
    async fn layered_write(&self, _tx: Tx<SqliteStore>) -> String {
        self.run()
    }

    #[tool]
    async fn layered_act(&self) -> Result<String, ErrorData> {
        let _tx = Attempt::current()?.begin::<SqliteStore>().await?;
        Ok(self.run())
    }

    /// Only reads, and no rule names it.
    #[tool(annotations(read_only_hint = true))]
    async fn look(&self) -> String {
        self.run()
    }

    #[tool]
    async fn untouched(&self) -> String {
        self.run()
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Desk {}

impl Desk {
    async fn open(
        directory: &TempDir,
        set_up: impl FnOnce(IdempotencyBuilder<SqliteStore>) -> IdempotencyBuilder<SqliteStore>,
    ) -> Self {
        let seen = Arc::<Mutex<Vec<_>>>::default();
        let hook = Arc::clone(&seen);
        let options = SqliteConnectOptions::new()
            .filename(directory.path().join("desk.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal);
        let store = SqliteStore::builder(SqlitePool::connect_with(options).await.unwrap())
            .with_on_begin(move |_, call| {
                let scope = call.scope.as_ref().map(Scope::as_str).map(str::to_owned);
                hook.lock().unwrap().push(scope);
                Box::pin(async { Ok(()) })
            })
            .build()
            .unwrap();
        store.migrate().await.unwrap();
        Self {
            idempotency: set_up(Idempotency::builder("desk", store)).build().unwrap(),
            runs: Arc::default(),
            seen,
            tool_router: Self::tool_router(),
        }
    }

    fn run(&self) -> String {
        let number = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        format!("run {number}")
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    fn take_seen(&self) -> Vec<Option<String>> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    fn behind_the_layer(&self) -> impl ServerHandler + Clone {
        let default = Rule::lease(OnError::InDoubt);
        let layer = IdempotencyLayer::builder(self.idempotency.clone(), default)
            .with_tool("layered_write", Rule::transaction())
            .with_tool("untouched", Rule::untouched())
            .build()
            .unwrap();
        self.clone().idempotent(layer)
    }
}
