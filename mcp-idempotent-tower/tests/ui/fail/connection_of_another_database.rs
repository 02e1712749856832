use mcp_idempotent_tower::{Idempotency, idempotent, store::sqlite::SqliteStore};
use rmcp::{tool, tool_router};

#[derive(Clone)]
pub struct Server {
    pub idempotency: Idempotency<SqliteStore>,
}

#[tool_router]
impl Server {
    #[idempotent]
    #[tool]
    pub async fn greet(&self, _tx: &mut String) -> String {
        String::new()
    }
}

fn main() {}
