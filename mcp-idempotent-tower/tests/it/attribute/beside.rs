//! Beside other attributes, and over several routers.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent};
use rmcp::{ServerHandler, tool, tool_handler, tool_router};
use serde_json::Value;

use crate::client::{call, connect, params};

#[derive(Clone)]
struct Server {
    idempotency: Idempotency<MemoryStore>,
    runs: Arc<AtomicU32>,
}

impl Server {
    fn run(&self) -> String {
        self.runs.fetch_add(1, Ordering::SeqCst).to_string()
    }
}

#[tool_router(router = first)]
impl Server {
    #[idempotent(on_error = in_doubt)]
    #[tool]
    #[tracing::instrument(skip_all)]
    async fn instrumented_below(&self) -> String {
        self.run()
    }

    #[tracing::instrument(skip_all)]
    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn instrumented_above(&self) -> String {
        self.run()
    }
}

#[tool_router(router = second)]
#[expect(clippy::needless_lifetimes, reason = "an author may name it")]
impl Server {
    #[idempotent(on_error = in_doubt)]
    #[cfg(test)]
    #[tool]
    #[allow(clippy::unused_async, reason = "moves to the original")]
    async fn configured<'a>(&'a self) -> String {
        self.run()
    }
}

#[tool_handler(router = (Self::first() + Self::second()))]
impl ServerHandler for Server {}

#[tokio::test]
async fn other_attributes_and_several_routers_do_not_disturb() {
    let client = connect(Server {
        idempotency: Idempotency::for_stdio("beside", MemoryStore::new()).unwrap(),
        runs: Arc::default(),
    })
    .await;
    let tools = ["instrumented_below", "instrumented_above", "configured"];
    for (run, tool) in tools.into_iter().enumerate() {
        for _ in 0..2 {
            let answer = call(&client, params(tool, Value::Null, Value::Null)).await;
            let text = &answer["result"]["content"][0]["text"];
            assert_eq!(text, &run.to_string(), "{answer}");
        }
    }
}
