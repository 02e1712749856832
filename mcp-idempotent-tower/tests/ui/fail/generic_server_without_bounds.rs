use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent};
use rmcp::{tool, tool_router};

#[derive(Clone)]
pub struct Server<T> {
    pub idempotency: Idempotency<MemoryStore>,
    pub other: T,
}

#[tool_router]
impl<T: Clone + Send + 'static> Server<T> {
    #[idempotent(on_error = release)]
    #[tool]
    pub async fn greet(&self) -> String {
        String::new()
    }
}

fn main() {}
