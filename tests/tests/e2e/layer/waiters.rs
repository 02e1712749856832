//! Many duplicates of one running call under the layer: what they take of the database and of
//! memory.

use std::{fs, sync::Arc};

use mcp_idempotent_tests::{
    client::PATIENCE,
    database::{Database as _, Postgres, Stored, unique},
};
use rmcp::{
    ServerHandler,
    model::{CallToolRequestParams, CallToolResponse, MetaObject, RequestId},
    service::RequestContext,
};
use serde_json::json;
use tokio::task::JoinSet;

use super::shop::{Place, Shop, Stop};
use crate::world::{engine, until};

const WAITERS: usize = 1000;

/// What one waiter may take, its task, its call and its answer's place included. The engine's part
/// is in the benchmark `waiting`.
const BYTES: usize = 16 * 1024;

/// The process's resident memory in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let kilobytes: usize = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|number| number.trim().parse().ok())
        .expect("a line `VmRSS: … kB`");
    kilobytes * 1024
}

#[tokio::test]
async fn a_thousand_waiters_of_one_key_hold_one_connection_and_little_memory() {
    let database = Postgres::create().await;
    let name = unique("waiters");
    let pool = database.pool(database.options().application_name(&name), 16);
    let store = database.builder(pool).build().unwrap();
    let idempotency = engine(store).build().unwrap();
    let stop = Stop::at(Some(Place::InHandler));
    let shop = Shop::stopping(&stop);
    let server = Arc::new(shop.behind(&idempotency));

    // A peer to call by, without a transport's buffers in what is measured.
    let (here, _there) = tokio::io::duplex(64);
    let peer =
        rmcp::service::serve_directly::<rmcp::RoleServer, _, _, _, _>(Shop::new(), here, None);
    let peer = peer.peer().clone();
    let call = move || {
        let mut params = CallToolRequestParams::new("order");
        params.arguments = json!({ "name": "an order" }).as_object().cloned();
        let mut context = RequestContext::new(RequestId::Number(1), peer.clone());
        context.meta = MetaObject::default().into();
        context.meta.insert("idempotency-key".into(), "k".into());
        (params, context)
    };
    let mut calls = JoinSet::new();
    let mut start = |count: usize| {
        for _ in 0..count {
            let server = Arc::clone(&server);
            let (params, context) = call();
            calls.spawn(async move { server.call_tool(params, context).await });
        }
    };
    let waiting = async |count| until(async || idempotency.engine().waiting() == count).await;

    let connections = |state: &str| {
        format!(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE application_name = '{name}' AND backend_type = 'client backend' {state}"
        )
    };
    start(1);
    stop.arrival().await;
    let of_the_first = database.integer(&connections("")).await;
    // What is made once is made for these.
    start(WAITERS);
    waiting(WAITERS).await;
    let before = resident();
    start(WAITERS);
    waiting(2 * WAITERS).await;
    let each = resident().saturating_sub(before) / WAITERS;

    let held = database.integer(&connections("AND state <> 'idle'")).await;
    assert_eq!(held, 1, "the running call's own");
    let now = database.integer(&connections("")).await;
    assert_eq!(now, of_the_first, "none was opened for a waiter");
    assert!(each <= BYTES, "{each} bytes for each waiter");

    stop.open();
    let mut answers = 0;
    while let Some(answer) = tokio::time::timeout(PATIENCE, calls.join_next())
        .await
        .expect("all are answered")
    {
        let answer = answer.unwrap().unwrap();
        let CallToolResponse::Complete(result) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(result.structured_content.unwrap()["number"], 1);
        answers += 1;
    }
    assert_eq!(answers, 1 + 2 * WAITERS);
    assert_eq!(shop.runs(), 1);
    assert_eq!(database.effects().await, ["an order"]);
    assert_eq!(database.records().await, [Stored::Completed]);
}
