use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent};
use rmcp::{tool, tool_router};

#[derive(Clone)]
pub struct Server {
    pub idempotency: Idempotency<MemoryStore>,
}

#[tool_router]
impl Server {
    #[idempotent(on_error = release, rotated_keys = forbid)]
    #[tool]
    pub async fn greet(&self) -> String {
        String::new()
    }
}

fn main() {}
