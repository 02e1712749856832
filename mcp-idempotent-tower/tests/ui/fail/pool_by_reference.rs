use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent};
use rmcp::{tool, tool_router};
use sqlx::SqlitePool;

#[derive(Clone)]
pub struct Server {
    pub idempotency: Idempotency<MemoryStore>,
}

#[tool_router]
impl Server {
    #[idempotent(on_error = release)]
    #[tool]
    pub async fn greet(&self, _pool: &SqlitePool) -> String {
        String::new()
    }
}

fn main() {}
