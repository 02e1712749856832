//! What duplicates of a slow call cost, with tower's limits above the layer and below it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, MemoryStore, OnError, ServerExt as _, layer::Rule, wire,
};
use rmcp::{
    RoleClient, ServerHandler,
    handler::server::router::tool::ToolRouter,
    model::{CallToolRequestParams, MetaObject},
    service::RunningService,
    tool, tool_handler, tool_router,
};
use tokio::{runtime::Runtime, task::JoinSet};
use tower::{limit::ConcurrencyLimitLayer, timeout::TimeoutLayer};

use crate::{connect, paired::is_quick};

/// How long the slow call takes.
const SLOW: Duration = Duration::from_millis(250);
const LIMIT: usize = 16;
const DUPLICATES: usize = 64;
/// Below what the slow call takes.
const TIMEOUT: Duration = Duration::from_millis(50);

struct Office {
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Office {
    fn new() -> Self {
        Self {
            tool_router: Self::tool_router(),
        }
    }

    #[tool]
    async fn slow(&self) -> String {
        tokio::time::sleep(SLOW).await;
        String::new()
    }

    #[tool]
    async fn fast(&self) -> String {
        String::new()
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Office {}

fn keyed(tool: &'static str, key: &str) -> CallToolRequestParams {
    let mut params = CallToolRequestParams::new(tool);
    let mut meta = MetaObject::default();
    meta.insert(wire::KEY.to_owned(), key.into());
    params.meta = Some(meta.into());
    params
}

fn engine() -> (Idempotency<MemoryStore>, IdempotencyLayer<MemoryStore>) {
    let idempotency =
        Idempotency::for_stdio("benchmarks", MemoryStore::new()).expect("a store of this process");
    let layer = IdempotencyLayer::new(idempotency.clone(), Rule::lease(OnError::InDoubt));
    (idempotency, layer.expect("a rule"))
}

/// What each order costs, in words.
pub(crate) fn measured(runtime: &Runtime) -> Vec<String> {
    let repeats = if is_quick() { 3 } else { 21 };
    let [alone, above, below] = runtime.block_on(async {
        let mut times: [Vec<Duration>; 3] = Default::default();
        for _ in 0..repeats {
            let (idempotency, layer) = engine();
            let server = Office::new()
                .layered(ConcurrencyLimitLayer::new(LIMIT))
                .idempotent(layer);
            times[0].push(beside(0, &idempotency, server).await);
            let (idempotency, layer) = engine();
            let server = Office::new()
                .idempotent(layer)
                .layered(ConcurrencyLimitLayer::new(LIMIT));
            times[1].push(beside(DUPLICATES, &idempotency, server).await);
            let (idempotency, layer) = engine();
            let server = Office::new()
                .layered(ConcurrencyLimitLayer::new(LIMIT))
                .idempotent(layer);
            times[2].push(beside(DUPLICATES, &idempotency, server).await);
        }
        times.map(median)
    });
    let mut notes = vec![format!(
        "A call of another key beside {DUPLICATES} duplicates of one that takes {SLOW:?}, under \
         `ConcurrencyLimit({LIMIT})`: {above:.2?} with the limit above the layer, {below:.2?} with \
         it below; without duplicates {alone:.2?}."
    )];
    let (above, below) = runtime.block_on(async {
        let (idempotency, layer) = engine();
        let server = Office::new()
            .idempotent(layer)
            .layered(TimeoutLayer::new(TIMEOUT));
        let above = until_answered(server).await;
        drop(idempotency);
        let (_, layer) = engine();
        let server = Office::new()
            .layered(TimeoutLayer::new(TIMEOUT))
            .idempotent(layer);
        (above, until_answered(server).await)
    });
    notes.push(format!(
        "The slow call under `Timeout({TIMEOUT:?})`, retried with its key until it is answered: with \
         the timeout above, {above}; with it below, {below}."
    ));
    notes
}

/// The time of a call of another key, sent while the slow one runs and its duplicates have come.
async fn beside(
    duplicates: usize,
    idempotency: &Idempotency<MemoryStore>,
    server: impl ServerHandler,
) -> Duration {
    let (client, _server) = connect(server).await;
    let client = Arc::new(client);
    let mut calls = JoinSet::new();
    for _ in 0..=duplicates {
        let client = Arc::clone(&client);
        calls.spawn(async move { client.call_tool(keyed("slow", "slow")).await });
    }
    // As many as get through to the layer.
    let through = idempotency.engine();
    let mut last = usize::MAX;
    while idempotency.running() == 0 || through.waiting() != last {
        last = through.waiting();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let start = Instant::now();
    client
        .call_tool(keyed("fast", "fast"))
        .await
        .expect("an answer");
    let time = start.elapsed();
    while let Some(called) = calls.join_next().await {
        called.expect("no panic").expect("an answer");
    }
    time
}

/// How a caller fares who is told that the call timed out, and retries it.
async fn until_answered(server: impl ServerHandler) -> String {
    let (client, _server): (RunningService<RoleClient, ()>, _) = connect(server).await;
    let start = Instant::now();
    for tries in 1.. {
        match client.call_tool(keyed("slow", "k")).await {
            Ok(_) => {
                return format!("its result after {tries} tries and {:.0?}", start.elapsed());
            }
            Err(rmcp::ServiceError::McpError(error)) => {
                let data = error.data.unwrap_or_default();
                if data["type"] != "call_timed_out" {
                    return format!("`{}` at try {tries}", data["type"].as_str().unwrap_or("?"));
                }
            }
            Err(error) => unreachable!("the server is there: {error}"),
        }
    }
    unreachable!("it retries for ever")
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
