//! Every option, in every form that it takes.

use mcp_idempotent_tower::{Idempotency, idempotent, store::sqlite::SqliteStore};
use rmcp::{tool, tool_router};
use sqlx::SqliteConnection;

#[derive(Clone)]
pub struct Server {
    pub idempotency: Idempotency<SqliteStore>,
}

#[tool_router]
impl Server {
    #[idempotent(
        key = explicit,
        key_argument = "/idempotency_key",
        ignore("trace_id", "/meta/sent_at",),
        retention = "24h",
        window = "1h 30m",
        wait = "30s",
        on_error = commit,
        idempotency = self.idempotency,
        crate = ::mcp_idempotent_tower,
    )]
    #[tool]
    pub async fn first(&self, _tx: &mut SqliteConnection) -> String {
        String::new()
    }

    #[idempotent(key = derived, key_argument = "/meta/key", wait = reject, lease = "5m", on_error = in_doubt)]
    #[tool]
    pub async fn second(&self) -> String {
        String::new()
    }

    #[idempotent(key = required, on_error = release)]
    #[tool]
    pub fn third(&self) {}

    #[idempotent(on_error = record)]
    #[tool]
    pub fn fourth(&self, _tx: &mut SqliteConnection) {}
}

fn main() {}
