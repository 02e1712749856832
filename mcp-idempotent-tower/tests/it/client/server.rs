//! The server that these clients call.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent};
use rmcp::{ErrorData, handler::server::wrapper::Parameters, tool, tool_router};
use tokio::sync::{Notify, Semaphore};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
pub(super) struct Charge {
    #[serde(default)]
    amount: i64,
}

#[derive(Clone)]
pub(super) struct Server {
    idempotency: Idempotency<MemoryStore>,
    state: Arc<State>,
}

struct State {
    runs: AtomicU32,
    gate: Semaphore,
    cancelled: Notify,
}

#[tool_router(server_handler)]
impl Server {
    pub(super) fn new() -> Self {
        Self {
            idempotency: Idempotency::builder("clients", MemoryStore::new())
                .with_scope_shared_by_all_callers()
                .build()
                .unwrap(),
            state: Arc::new(State {
                runs: AtomicU32::new(0),
                gate: Semaphore::new(0),
                cancelled: Notify::new(),
            }),
        }
    }

    fn run(&self) -> String {
        (self.state.runs.fetch_add(1, Ordering::SeqCst) + 1).to_string()
    }

    /// How often a tool ran.
    pub(super) fn runs(&self) -> u32 {
        self.state.runs.load(Ordering::SeqCst)
    }

    /// Lets `slow` end.
    pub(super) fn open_gate(&self) {
        self.state.gate.add_permits(1);
    }

    /// Waits until a call of `stuck` was cancelled.
    pub(super) async fn cancelled(&self) {
        self.state.cancelled.notified().await;
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn charge(&self, Parameters(charge): Parameters<Charge>) -> String {
        format!("{} for {}", self.run(), charge.amount)
    }

    #[idempotent(on_error = in_doubt, key_argument = "/request_key")]
    #[tool]
    async fn charge_by_argument(&self) -> String {
        self.run()
    }

    #[idempotent(on_error = in_doubt, wait = reject)]
    #[tool]
    async fn slow(&self) -> String {
        let run = self.run();
        self.state.gate.acquire().await.unwrap().forget();
        run
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn in_doubt(&self) -> Result<String, ErrorData> {
        Err(ErrorData::internal_error(self.run(), None))
    }

    /// Ends when it is cancelled.
    #[tool]
    async fn stuck(&self, cancelled: tokio_util::sync::CancellationToken) -> String {
        let run = self.run();
        cancelled.cancelled().await;
        self.state.cancelled.notify_one();
        run
    }

    #[tool]
    async fn unprotected(&self) -> String {
        self.run()
    }

    #[tool(annotations(read_only_hint = true))]
    async fn look(&self) -> String {
        self.run()
    }
}
