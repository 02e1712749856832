use mcp_idempotent_tower::{Idempotency, idempotent, store::sqlite::SqliteStore};
use rmcp::{tool, tool_router};
use sqlx::SqliteConnection;

#[derive(Clone)]
pub struct Server {
    pub idempotency: Idempotency<SqliteStore>,
}

#[tool_router]
impl Server {
    #[idempotent(run_unprotected_when_store_is_unavailable = true)]
    #[tool]
    pub async fn greet(&self, _tx: &mut SqliteConnection) -> String {
        String::new()
    }
}

fn main() {}
