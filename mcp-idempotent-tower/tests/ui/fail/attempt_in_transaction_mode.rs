use mcp_idempotent_tower::{Attempt, Idempotency, idempotent, store::sqlite::SqliteStore};
use rmcp::{tool, tool_router};
use sqlx::SqliteConnection;

#[derive(Clone)]
pub struct Server {
    pub idempotency: Idempotency<SqliteStore>,
}

#[tool_router]
impl Server {
    #[idempotent]
    #[tool]
    pub async fn greet(&self, _tx: &mut SqliteConnection, _attempt: Attempt) -> String {
        String::new()
    }
}

fn main() {}
