//! A whole server behind the layer, through a real rmcp client and server.

mod definitions;
mod doubt;
mod drops;
mod entered;
mod fidelity;
mod http;
mod outcomes;
mod policy;
mod stacks;
mod status;
mod stdio;
#[cfg(feature = "sqlite")]
mod transaction;
mod waiters;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_tower::{Idempotency, IdempotencyLayer, MemoryStore, OnError, layer::Rule};
use rmcp::{
    ErrorData, Json, ServerHandler,
    handler::server::{tool::ToolRouter, wrapper::Parameters},
    tool, tool_handler, tool_router,
};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinHandle};

use crate::client::{Client, call, params, refusal};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Message {
    text: String,
}

#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
struct Sent {
    number: u32,
}

/// A server whose author did not think of retries.
#[derive(Clone)]
struct Mailer {
    sent: Arc<AtomicU32>,
    /// `send_slowly` begins when it is called, and goes on with a permit of this.
    go_on: Arc<Semaphore>,
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Mailer {
    fn new() -> Self {
        Self {
            sent: Arc::default(),
            go_on: Arc::new(Semaphore::new(0)),
            tool_router: Self::tool_router(),
        }
    }

    fn sent(&self) -> u32 {
        self.sent.load(Ordering::SeqCst)
    }

    fn count(&self) -> Sent {
        Sent {
            number: self.sent.fetch_add(1, Ordering::SeqCst) + 1,
        }
    }

    /// Sends a message.
    #[tool]
    async fn send(&self, Parameters(message): Parameters<Message>) -> Json<Sent> {
        drop(message.text);
        Json(self.count())
    }

    /// Sends a message when it is let.
    #[tool]
    async fn send_slowly(&self, Parameters(message): Parameters<Message>) -> Json<Sent> {
        drop(message.text);
        let sent = self.count();
        self.go_on.acquire().await.unwrap().forget();
        Json(sent)
    }

    /// Counts, and only that.
    #[tool(annotations(read_only_hint = true))]
    async fn look(&self, Parameters(message): Parameters<Message>) -> Json<Sent> {
        drop(message.text);
        Json(self.count())
    }

    /// Sends, and says that it failed.
    #[tool]
    async fn fail(&self) -> Result<String, String> {
        Err(self.count().number.to_string())
    }

    /// Sends, and fails.
    #[tool]
    async fn fail_badly(&self) -> Result<String, ErrorData> {
        Err(ErrorData::internal_error(
            self.count().number.to_string(),
            None,
        ))
    }

    /// Sends, and fails when it is let.
    #[tool]
    async fn fail_slowly(&self) -> Result<String, ErrorData> {
        let number = self.count().number;
        self.go_on.acquire().await.unwrap().forget();
        Err(ErrorData::internal_error(number.to_string(), None))
    }

    /// Sends, and panics.
    #[tool]
    async fn panic(&self) -> String {
        panic!("sent {}", self.count().number)
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Mailer {}

fn idempotency() -> Idempotency<MemoryStore> {
    Idempotency::for_stdio("mailer", MemoryStore::new()).unwrap()
}

fn layer(rule: Rule<MemoryStore>) -> IdempotencyLayer<MemoryStore> {
    IdempotencyLayer::new(idempotency(), rule).unwrap()
}

fn lease() -> Rule<MemoryStore> {
    Rule::lease(OnError::InDoubt)
}

fn key(key: &str) -> Value {
    json!({ "idempotency-key": key })
}

fn hello() -> Value {
    json!({ "text": "hello" })
}

/// Calls `send`, and gives the number of the message.
async fn send(client: &Client, meta: Value) -> u64 {
    number(&call(client, params("send", hello(), meta)).await)
}

/// Calls `send_slowly` in a task of its own.
fn slowly(client: &Arc<Client>, meta: Value) -> JoinHandle<Value> {
    let client = Arc::clone(client);
    tokio::spawn(async move { call(&client, params("send_slowly", hello(), meta)).await })
}

fn number(answer: &Value) -> u64 {
    answer["result"]["structuredContent"]["number"]
        .as_u64()
        .unwrap_or_else(|| panic!("not sent: {answer}"))
}

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .unwrap_or_else(|_| panic!("never {what}"));
}
