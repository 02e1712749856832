//! The crate under another name.

extern crate mcp_idempotent_tower as once;

mod server {
    use once::{Idempotency, MemoryStore, idempotent};
    use rmcp::{tool, tool_router};

    #[derive(Clone)]
    pub struct Server {
        pub idempotency: Idempotency<MemoryStore>,
    }

    #[tool_router]
    impl Server {
        #[idempotent(on_error = release, crate = once)]
        #[tool]
        pub async fn greet(&self) -> String {
            String::new()
        }
    }
}

fn main() {
    let _ = server::Server::greet_tool_attr();
}
