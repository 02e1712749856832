//! What the layer adds to a tool call of rmcp's, over the memory store; and what duplicates cost
//! with a limit above the layer, and with one below it.

mod order;
#[path = "../../../mcp-idempotent-core/benches/paired/mod.rs"]
mod paired;
mod waiting;

use std::{
    cell::RefCell,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, MemoryStore, OnError, ServerExt as _, layer::Rule, wire,
};
use paired::{Paired, Target, each};
use rmcp::{
    ErrorData, Json, Peer, RoleClient, RoleServer, ServerHandler, ServiceExt as _,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    model::{CallToolRequestParams, CallToolResponse, MetaObject, RequestId},
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

/// A server whose author did not think of retries.
struct Bank {
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Bank {
    fn new() -> Self {
        Self {
            tool_router: Self::tool_router(),
        }
    }

    #[tool]
    async fn transfer(
        &self,
        Parameters(transfer): Parameters<Transfer>,
    ) -> Result<Json<Receipt>, ErrorData> {
        drop((transfer.currency, transfer.text));
        Ok(Json(Receipt {
            account: transfer.account,
            amount: transfer.amount + i64::from(transfer.urgent),
        }))
    }
}

// A router kept in a field: rmcp's default makes a new one for every call.
#[tool_handler(router = self.tool_router)]
impl ServerHandler for Bank {}

/// Which key a call has.
#[derive(Clone, Copy)]
enum Key {
    New,
    /// The same each time.
    Old,
    None,
}

fn params(key: Key) -> CallToolRequestParams {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let key = match key {
        Key::New => Some(COUNT.fetch_add(1, Ordering::Relaxed).to_string()),
        Key::Old => Some("old".to_owned()),
        Key::None => None,
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
    let mut params = CallToolRequestParams::new("transfer");
    params.arguments = Some(arguments);
    if let Some(key) = key {
        let mut meta = MetaObject::default();
        meta.insert(wire::KEY.to_owned(), key.into());
        params.meta = Some(meta.into());
    }
    params
}

fn wrapped() -> impl ServerHandler + Clone {
    let idempotency =
        Idempotency::for_stdio("benchmarks", MemoryStore::new()).expect("a store of this process");
    let layer = IdempotencyLayer::new(idempotency, Rule::lease(OnError::Release));
    Bank::new().idempotent(layer.expect("a rule"))
}

fn main() {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let layered = wrapped();
    let (bare_client, bare_server) = runtime.block_on(connect(Bank::new()));
    let (client, server) = runtime.block_on(connect(layered.clone()));
    let (bare_peer, peer) = (bare_server.peer().clone(), server.peer().clone());
    let bare = Bank::new();
    let mut paired = Paired::new(&runtime, "The layer over the memory store");
    for (name, key) in [
        ("first call", Key::New),
        ("replay", Key::Old),
        ("call without a key", Key::None),
    ] {
        paired.row(
            &format!("{name}, through a pipe / the bare server"),
            Target::Adds(Duration::from_micros(3)),
            32,
            async |calls| each(calls, async || call(&bare_client, params(key)).await).await,
            async |calls| each(calls, async || call(&client, params(key)).await).await,
        );
        paired.row(
            &format!("{name}, through call_tool / the bare server"),
            Target::Adds(Duration::from_micros(3)),
            128,
            async |calls| hand_over(&bare, &bare_peer, calls, key).await,
            async |calls| hand_over(&layered, &peer, calls, key).await,
        );
    }
    // Not where single rows are asked for, or where it is only tested that the benchmark works.
    if std::env::args().skip(1).eq(["--bench"]) {
        for note in order::measured(&runtime) {
            paired.note(note);
        }
        paired.note(waiting::measured(&runtime, &peer));
    }
    paired.finish();
}

async fn connect<H: ServerHandler>(
    server: H,
) -> (
    RunningService<RoleClient, ()>,
    RunningService<RoleServer, H>,
) {
    let (here, there) = tokio::io::duplex(1 << 16);
    let (client, server) = tokio::join!(().serve(here), server.serve(there));
    (client.expect("a client"), server.expect("a server"))
}

async fn call(client: &RunningService<RoleClient, ()>, params: CallToolRequestParams) {
    let answer = client.call_tool(params).await.expect("an answer");
    assert_ne!(answer.is_error, Some(true));
}

/// Calls without a transport; making the calls takes no part in the time.
async fn hand_over(
    server: &impl ServerHandler,
    peer: &Peer<RoleServer>,
    calls: u32,
    key: Key,
) -> Duration {
    let requests: Vec<_> = (0..calls)
        .map(|_| {
            let mut params = params(key);
            let mut context = RequestContext::new(RequestId::Number(1), peer.clone());
            // Where rmcp puts it before it asks a handler.
            context.meta = params.meta.take().unwrap_or_default();
            (params, context)
        })
        .collect();
    let requests = RefCell::new(requests);
    each(calls, async || {
        let (params, context) = requests.borrow_mut().pop().expect("one for each call");
        let answer = server.call_tool(params, context).await.expect("an answer");
        assert!(matches!(answer, CallToolResponse::Complete(_)));
    })
    .await
}
