use mcp_idempotent_tower::{Idempotency, idempotent, store::sqlite::SqliteStore};
use rmcp::{tool, tool_router};

#[derive(Clone)]
pub struct Server {
    pub idempotency: Idempotency<SqliteStore>,
}

#[tool_router]
impl Server {
    #[tool]
    #[idempotent]
    pub async fn greet(&self, tx: &mut sqlx::SqliteConnection) -> String {
        format!("{tx:?}")
    }
}

fn main() {}
