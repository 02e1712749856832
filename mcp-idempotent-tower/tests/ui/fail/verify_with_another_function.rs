use mcp_idempotent_tower::{Idempotency, InDoubt, MemoryStore, idempotent};
use rmcp::{tool, tool_router};

#[derive(Clone)]
pub struct Server {
    pub idempotency: Idempotency<MemoryStore>,
}

#[tool_router]
impl Server {
    #[idempotent(on_error = release, on_doubt = verify(Self::find_out))]
    #[tool]
    pub async fn greet(&self) -> String {
        String::new()
    }

    async fn find_out(&self, _call: InDoubt<'_>) -> bool {
        true
    }
}

fn main() {}
