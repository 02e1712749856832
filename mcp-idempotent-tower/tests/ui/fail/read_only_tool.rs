use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent};
use rmcp::{tool, tool_router};

#[derive(Clone)]
pub struct Server {
    pub idempotency: Idempotency<MemoryStore>,
}

#[tool_router]
impl Server {
    #[idempotent(on_error = release)]
    #[tool(annotations(title = "List", read_only_hint = true))]
    pub async fn list(&self) -> String {
        String::new()
    }
}

fn main() {}
