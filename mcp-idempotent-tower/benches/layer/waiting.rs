//! What a duplicate takes of memory that waits under the layer, in a task of its own; Linux only.

use std::{fs, future::pending};

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, MemoryStore, OnError, ServerExt as _, layer::Rule, wire,
};
use rmcp::{
    ErrorData, Peer, RoleServer, ServerHandler,
    model::{CallToolRequestParams, CallToolResponse, MetaObject, RequestId},
    service::RequestContext,
};
use tokio::runtime::Runtime;

const WAITING: usize = 10_000;

/// Its calls never end.
struct Endless;

impl ServerHandler for Endless {
    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        pending().await
    }
}

/// In words; without a transport, whose own task for a call is not in it.
pub(crate) fn measured(runtime: &Runtime, peer: &Peer<RoleServer>) -> String {
    let Some(before_all) = resident() else {
        return "Memory of waiting calls: not measured, it is read from Linux' /proc.".to_owned();
    };
    let idempotency = Idempotency::builder("benchmarks", MemoryStore::new())
        .with_one_caller()
        .with_waiter_limits(usize::MAX, usize::MAX)
        .build()
        .expect("settings");
    let layer = IdempotencyLayer::new(idempotency.clone(), Rule::lease(OnError::InDoubt));
    let server = Endless.idempotent(layer.expect("a rule"));
    let start = || {
        let (server, peer) = (server.clone(), peer.clone());
        drop(tokio::spawn(async move {
            let params = CallToolRequestParams::new("endless");
            let mut context = RequestContext::new(RequestId::Number(1), peer);
            let mut meta = MetaObject::default();
            meta.insert(wire::KEY.to_owned(), "k".into());
            context.meta = meta.into();
            server.call_tool(params, context).await
        }));
    };
    let wait = async |count: usize| {
        (idempotency.engine().waiting()..count).for_each(|_| start());
        while idempotency.engine().waiting() < count {
            tokio::task::yield_now().await;
        }
        resident().unwrap_or(before_all)
    };
    let [first, between, after] = runtime.block_on(async {
        start();
        while idempotency.running() == 0 {
            tokio::task::yield_now().await;
        }
        let first = resident().unwrap_or(before_all);
        [first, wait(WAITING).await, wait(2 * WAITING).await]
    });
    format!(
        "A duplicate that waits, its call and a task of its own included: {} bytes for the first \
         {WAITING}, {} for {WAITING} more.",
        (between - first) / WAITING,
        (after - between) / WAITING
    )
}

/// The process's resident memory in bytes.
fn resident() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: usize = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
