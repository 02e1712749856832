use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent};
use rmcp::{tool, tool_router};

#[derive(Clone)]
pub struct Server {
    pub idempotency: Idempotency<MemoryStore>,
}

#[tool_router]
impl Server {
    #[idempotent(on_error = release)]
    #[tool]
    pub async fn greet(&self) -> String {
        let name = std::rc::Rc::new(String::new());
        std::future::ready(()).await;
        name.to_string()
    }
}

fn main() {}
