//! What `#[idempotent]` adds to a tool call of rmcp's, over the memory store.

#[path = "../../mcp-idempotent-core/benches/paired/mod.rs"]
mod paired;

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent, wire};
use paired::{Paired, Target, each};
use rmcp::{
    ErrorData, Json, Peer, RoleClient, RoleServer, ServiceExt,
    handler::server::{
        router::tool::ToolRouter,
        tool::{IntoCallToolResult, ToolCallContext},
        wrapper::Parameters,
    },
    model::{CallToolRequestParams, MetaObject, RequestId},
    service::{RequestContext, RunningService},
    tool, tool_handler, tool_router,
};
use serde_json::json;
use tokio::runtime::Builder;

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Transfer {
    account: String,
    amount: i64,
    currency: String,
    urgent: bool,
    text: String,
}

#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
struct Receipt {
    account: String,
    amount: i64,
}

impl Transfer {
    fn receipt(self) -> Receipt {
        drop((self.currency, self.text));
        Receipt {
            account: self.account,
            amount: if self.urgent {
                self.amount + 1
            } else {
                self.amount
            },
        }
    }
}

#[derive(Clone)]
struct Bank {
    idempotency: Idempotency<MemoryStore>,
    /// Behind an `Arc`, because an execution takes a clone of the server along.
    tool_router: Arc<ToolRouter<Self>>,
}

#[tool_router]
impl Bank {
    fn new() -> Self {
        Self {
            idempotency: Idempotency::for_stdio("benchmarks", MemoryStore::new())
                .expect("a store of this process"),
            tool_router: Arc::new(Self::tool_router()),
        }
    }

    /// As rmcp has it.
    #[tool]
    async fn bare(
        &self,
        Parameters(transfer): Parameters<Transfer>,
    ) -> Result<Json<Receipt>, ErrorData> {
        Ok(Json(transfer.receipt()))
    }

    /// The same, once.
    #[idempotent(on_error = release)]
    #[tool]
    async fn annotated(
        &self,
        Parameters(transfer): Parameters<Transfer>,
    ) -> Result<Json<Receipt>, ErrorData> {
        Ok(Json(transfer.receipt()))
    }
}

// A router kept in a field: rmcp's default makes a new one for every call.
#[tool_handler(router = self.tool_router)]
impl rmcp::ServerHandler for Bank {}

/// Which key a call has.
#[derive(Clone, Copy)]
enum Key {
    New,
    /// The same each time.
    Old,
}

fn params(tool: &'static str, key: Key) -> CallToolRequestParams {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let key = match key {
        Key::New => COUNT.fetch_add(1, Ordering::Relaxed).to_string(),
        Key::Old => "old".to_owned(),
    };
    let serde_json::Value::Object(arguments) = json!({
        "account": "DE02120300000000202051",
        "amount": 1999,
        "currency": "EUR",
        "urgent": false,
        "text": "wage for may",
    }) else {
        unreachable!("an object")
    };
    let mut params = CallToolRequestParams::new(tool);
    params.arguments = Some(arguments);
    let mut meta = MetaObject::default();
    meta.insert(wire::KEY.to_owned(), key.into());
    params.meta = Some(meta.into());
    params
}

fn main() {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let bank = Bank::new();
    let (client, server) = runtime.block_on(connect(bank.clone()));
    let peer = server.peer().clone();
    let mut paired = Paired::new(&runtime, "#[idempotent] over the memory store");
    for (name, key) in [("first call", Key::New), ("replay", Key::Old)] {
        paired.row(
            &format!("{name}, through a pipe / a bare tool"),
            Target::Adds(Duration::from_micros(2)),
            32,
            async |calls| each(calls, async || call(&client, params("bare", key)).await).await,
            async |calls| {
                each(calls, async || {
                    call(&client, params("annotated", key)).await
                })
                .await
            },
        );
        paired.row(
            &format!("{name}, through ToolRouter::call / a bare tool"),
            Target::Adds(Duration::from_micros(2)),
            128,
            async |calls| route(&bank, &peer, calls, "bare", key).await,
            async |calls| route(&bank, &peer, calls, "annotated", key).await,
        );
    }
    paired.finish();
}

async fn connect(
    bank: Bank,
) -> (
    RunningService<RoleClient, ()>,
    RunningService<RoleServer, Bank>,
) {
    let (here, there) = tokio::io::duplex(1 << 16);
    let (client, server) = tokio::join!(().serve(here), bank.serve(there));
    (client.expect("a client"), server.expect("a server"))
}

async fn call(client: &RunningService<RoleClient, ()>, params: CallToolRequestParams) {
    let answer = client.call_tool(params).await.expect("an answer");
    assert_ne!(answer.is_error, Some(true));
}

/// Calls without a transport; making the calls takes no part in the time.
async fn route(
    bank: &Bank,
    peer: &Peer<RoleServer>,
    calls: u32,
    tool: &'static str,
    key: Key,
) -> Duration {
    let contexts: Vec<_> = (0..calls)
        .map(|_| {
            let mut params = params(tool, key);
            let mut request = RequestContext::new(RequestId::Number(1), peer.clone());
            // Where rmcp puts it before it asks a handler.
            request.meta = params.meta.take().unwrap_or_default();
            ToolCallContext::new(bank, params, request)
        })
        .collect();
    let contexts = RefCell::new(contexts);
    each(calls, async || {
        let context = contexts.borrow_mut().pop().expect("one for each call");
        let answer = bank.tool_router.call(context).await;
        answer.into_call_tool_result().expect("an answer");
    })
    .await
}
