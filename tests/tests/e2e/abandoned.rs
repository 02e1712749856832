//! Callers that go away while their call runs.

use std::time::Duration;

use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database, Stored},
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{CallToolRequestParams, CallToolResponse},
    service::RequestContext,
};
use serde_json::json;

use crate::{
    server::{Server, text},
    world::{Gate, World, done, engine, on_each_store, until, within_patience},
};

fn keyed(n: i64) -> CallToolRequestParams {
    call("work", json!({ "n": n })).with_key(format!("key-{n}"))
}

async fn a_call_goes_on_without_its_caller<D: Database>() {
    let gate = Gate::new();
    let world = World::<D>::new(gate.after::<D, _>(done, |_| text("done"))).await;
    // One caller cancels, one closes its connection.
    for leaves in [true, false] {
        let caller = Client::of(world.server.clone()).await;
        let params = keyed(i64::from(leaves));
        let first = caller.send(params.clone()).await.unwrap();
        gate.arrival().await;
        let waiter = world.client.send(params.clone()).await.unwrap();
        until(async || world.server.idempotency.engine().waiting() == 1).await;
        if leaves {
            drop(first);
            caller.leave().await;
        } else {
            first.cancel().await;
        }
        gate.open();
        let waiter = within_patience(waiter.answer()).await.unwrap();
        assert_eq!(waiter.success(), "done");
        assert!(waiter.is_replay());
        let retry = world.client.call(params).await;
        assert_eq!(retry.unmarked(), waiter.unmarked());
    }
    assert_eq!(world.server.runs(), 2);
    world.assert_effects(&["done", "done"]).await;
}

async fn a_call_is_recorded_when_everybody_has_gone<D: Database>() {
    let gate = Gate::new();
    let world = World::<D>::new(gate.after::<D, _>(done, |_| text("done"))).await;
    let caller = Client::of(world.server.clone()).await;
    drop(caller.send(keyed(1)).await.unwrap());
    gate.arrival().await;
    caller.leave().await;
    gate.open();
    until(async || world.database.records().await == [Stored::Completed]).await;
    let retry = world.client.call(keyed(1)).await;
    assert!(retry.is_replay());
    world.assert_effects(&["done"]).await;
}

async fn a_caller_above_that_times_out_does_not_stop_the_call<D: Database>() {
    let gate = Gate::new();
    let database = D::create().await;
    let server = Server::<D>::new(
        engine(database.store(2)).build().unwrap(),
        gate.after::<D, _>(done, |_| text("done")),
    );
    let client = Client::of(Impatient(server.clone())).await;
    let answer = client.call(keyed(1)).await;
    assert_eq!(answer.error()["message"], "timed out");
    gate.arrival().await;
    gate.open();
    until(async || database.records().await == [Stored::Completed]).await;
    let retry = Client::of(server.clone()).await.call(keyed(1)).await;
    assert!(retry.is_replay());
    assert_eq!(server.runs(), 1);
}

/// Drops every call after a moment, as a timeout in front of the server does.
struct Impatient<D: Database>(Server<D>);

impl<D: Database> ServerHandler for Impatient<D> {
    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let called = self.0.call_tool(params, context);
        tokio::time::timeout(Duration::from_millis(300), called)
            .await
            .unwrap_or_else(|_| Err(ErrorData::internal_error("timed out", None)))
    }
}

on_each_store! {
    a_call_goes_on_without_its_caller,
    a_call_is_recorded_when_everybody_has_gone,
    a_caller_above_that_times_out_does_not_stop_the_call,
}
