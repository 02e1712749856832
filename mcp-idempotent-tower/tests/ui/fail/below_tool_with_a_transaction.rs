use mcp_idempotent_tower::{Idempotency, idempotent, store::sqlite::SqliteStore};
use rmcp::{tool, tool_router};
use sqlx::SqliteConnection;

#[derive(Clone)]
pub struct Server {
    pub idempotency: Idempotency<SqliteStore>,
}

#[tool_router]
impl Server {
    #[tool]
    #[idempotent]
    pub async fn greet(&self, tx: &mut SqliteConnection) -> String {
        format!("{tx:?}")
    }
}

fn main() {}
