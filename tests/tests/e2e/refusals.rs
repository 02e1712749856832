//! Refusals before the handler, and the ways in which a server may word its answers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database, Postgres, Sqlite, effect},
};
use mcp_idempotent_tower::{Idempotency, RefusalForm, Scope, wire};
use rmcp::model::CallToolRequestParams;
use serde_json::json;

use crate::{
    server::{Server, text},
    wire::assert_wire,
    world::{Gate, World, engine, on_each_store, until},
};

fn keyed(tool: &str, n: i64) -> CallToolRequestParams {
    call(tool, json!({ "n": n })).with_key("k")
}

async fn a_key_that_is_none_is_refused<D: Database>() {
    let world =
        World::<D>::new(|_, call| Box::pin(async move { text(format!("run {}", call.earlier)) }))
            .await;
    let arguments = || json!({ "n": 1 });
    for (name, params) in [
        ("key_empty", call("work", arguments()).with_key("")),
        (
            "key_too_long",
            call("work", arguments()).with_key("k".repeat(256)),
        ),
        (
            "key_with_control_character",
            call("work", arguments()).with_key("a\u{7}b"),
        ),
        ("key_not_a_string", call("work", arguments()).with_key(7)),
        (
            "keys_contradict",
            call("work_by_argument", json!({ "n": 1, "key": "a" })).with_key("b"),
        ),
    ] {
        assert_wire(name, &world.client.call(params).await);
    }
    assert_eq!(world.server.runs(), 0);
    world.assert_nothing_is_left().await;
    for key in ["k".repeat(255), "clé de paiement".to_owned()] {
        let valid = call("work", arguments()).with_key(key);
        world.client.call(valid).await.success();
    }
}

async fn a_call_without_a_key_is_refused_where_one_is_required<D: Database>() {
    let world =
        World::<D>::new(|_, call| Box::pin(async move { text(format!("run {}", call.earlier)) }))
            .await;
    let unkeyed = call("keyed_work", json!({ "n": 1 }));
    assert_wire("key_required", &world.client.call(unkeyed).await);
    assert_eq!(world.server.runs(), 0);
    world.assert_nothing_is_left().await;
    world.client.call(keyed("keyed_work", 1)).await.success();
}

async fn refusals_are_tool_results_where_the_server_says_so<D: Database>() {
    let database = D::create().await;
    let idempotency = engine(database.store(2))
        .with_refusal_form(RefusalForm::Result)
        .build()
        .unwrap();
    let server = Server::<D>::new(idempotency, |_, _| Box::pin(async move { text("done") }));
    let client = Client::of(server).await;
    client.call(keyed("work", 1)).await.success();
    assert_wire("conflict_as_result", &client.call(keyed("work", 2)).await);
}

async fn a_replay_says_so_to_the_model_where_the_server_asks_for_it<D: Database>() {
    let database = D::create().await;
    let idempotency = engine(database.store(2))
        .with_announced_replays(true)
        .build()
        .unwrap();
    let server = Server::<D>::new(idempotency, |_, _| Box::pin(async move { text("done") }));
    let client = Client::of(server).await;
    let first = client.call(keyed("work", 1)).await;
    assert_eq!(first.result()["content"].as_array().unwrap().len(), 1);
    for _ in 0..2 {
        let replay = client.call(keyed("work", 1)).await;
        assert_wire("announced_replay", &replay);
    }
}

async fn keys_in_each_place_are_one_key<D: Database>() {
    let world =
        World::<D>::new(|_, call| Box::pin(async move { text(format!("run {}", call.earlier)) }))
            .await;
    let by_argument = call("work_by_argument", json!({ "n": 1, "key": "a" }));
    let by_meta = call("work_by_argument", json!({ "n": 1 })).with_key("a");
    let mut by_alias = call("work_by_argument", json!({ "n": 1 })).with_key("a");
    let meta = by_alias.meta.as_mut().unwrap();
    let key = meta.remove(wire::KEY).unwrap();
    meta.insert(wire::KEY_ALIAS.to_owned(), key);
    let first = world.client.call(by_argument.clone()).await;
    for params in [by_argument, by_meta, by_alias] {
        let retry = world.client.call(params).await;
        assert!(retry.is_replay());
        assert_eq!(retry.unmarked(), first.json);
    }
    assert_eq!(world.server.runs(), 1);
}

async fn callers_beyond_the_limit_of_those_who_wait_are_told_so<D: Database>() {
    let gate = Gate::new();
    let database = D::create().await;
    let idempotency = engine(database.store(2))
        .with_waiter_limits(1, 10)
        .build()
        .unwrap();
    let inner = gate.clone();
    let server = Server::<D>::new(idempotency, move |_, _| {
        let gate = inner.clone();
        Box::pin(async move {
            gate.pass().await;
            text("done")
        })
    });
    let client = Client::of(server.clone()).await;
    let first = client.send(keyed("work", 1)).await.unwrap();
    gate.arrival().await;
    let waiting = client.send(keyed("work", 1)).await.unwrap();
    until(async || server.idempotency.engine().waiting() == 1).await;
    assert_wire("too_many_waiting", &client.call(keyed("work", 1)).await);
    gate.open();
    assert_eq!(first.answer().await.unwrap().success(), "done");
    assert_eq!(waiting.answer().await.unwrap().success(), "done");
}

async fn callers_beyond_their_quota_of_new_calls_are_told_so<D: Database>() {
    let database = D::create().await;
    let idempotency = engine(database.store(2))
        .with_new_calls_per_scope(1, Duration::from_secs(3600))
        .build()
        .unwrap();
    let server = Server::<D>::new(idempotency, |_, _| Box::pin(async { text("done") }));
    let client = Client::of(server.clone()).await;
    assert_eq!(client.call(keyed("work", 1)).await.success(), "done");
    let new = call("work", json!({ "n": 2 })).with_key("another");
    assert_wire("too_many_new_calls", &client.call(new).await);
    assert!(client.call(keyed("work", 1)).await.is_replay());
    assert_eq!(server.runs(), 1);
}

async fn a_handler_past_its_timeout_is_told_dropped_and_run_anew<D: Database>() {
    let told = Arc::new(AtomicBool::new(false));
    let tells = Arc::clone(&told);
    let database = D::create().await;
    // One connection: what the handler held is given back.
    let store = database.store(1);
    let world = World::<D>::on(
        database,
        store,
        |policy| policy.transaction_timeout = Some(Duration::from_millis(300)),
        move |connection, call| {
            let told = Arc::clone(&tells);
            Box::pin(async move {
                let name = format!("run {}", call.earlier);
                effect::<D>(connection, &name).await.unwrap();
                if call.earlier == 0 {
                    call.context.ct.cancelled().await;
                    told.store(true, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                }
                text(name)
            })
        },
    )
    .await;
    let slow = world.client.send(keyed("work", 1)).await.unwrap();
    until(async || world.server.runs() == 1).await;
    let joined = world.client.send(keyed("work", 1)).await.unwrap();
    assert_wire("handler_over_time", &slow.answer().await.unwrap());
    assert!(told.load(Ordering::SeqCst));
    assert_eq!(joined.answer().await.unwrap().success(), "run 1");
    assert!(world.client.call(keyed("work", 1)).await.is_replay());
    world.assert_effects(&["run 1"]).await;
}

// Every machine's server would take its callers for the same one.
#[tokio::test]
async fn a_shared_store_is_not_given_to_a_server_that_names_no_scope() {
    let database = Postgres::create().await;
    let refused = Idempotency::for_stdio("app", database.store(2)).unwrap_err();
    let remedy = "with_fixed_scope(\"…\")";
    assert!(refused.to_string().contains(remedy), "{refused}");
    let idempotency = Idempotency::builder("app", database.store(2))
        .with_fixed_scope("front desk")
        .build()
        .unwrap();
    let server = Server::<Postgres>::new(idempotency, |_, _| Box::pin(async { text("done") }));
    let client = Client::of(server).await;
    let unkeyed = || call("work", json!({ "n": 1 }));
    assert_eq!(client.call(unkeyed()).await.success(), "done");
    assert!(client.call(unkeyed()).await.is_replay());
}

// A pipe has no HTTP head, and that does not say how many callers it has.
#[tokio::test]
async fn a_call_from_where_nobody_said_whose_keys_they_are_is_refused() {
    let database = Sqlite::create().await;
    let idempotency = Idempotency::builder("app", database.store(2))
        .with_scope_from_http(|_| Ok(Scope::new("somebody over HTTP")))
        .build()
        .unwrap();
    let server = Server::<Sqlite>::new(idempotency, |_, _| Box::pin(async { text("done") }));
    let client = Client::of(server.clone()).await;
    assert_wire("no_scope", &client.call(keyed("work", 1)).await);
    let unkeyed = call("work", json!({ "n": 1 }));
    assert_wire("no_scope_without_a_key", &client.call(unkeyed).await);
    assert_eq!(server.runs(), 0);
}

#[tokio::test]
async fn on_one_machine_over_stdio_there_is_one_caller() {
    let database = Sqlite::create().await;
    let idempotency = Idempotency::for_stdio("app", database.store(2)).unwrap();
    let server = Server::<Sqlite>::new(idempotency, |_, _| Box::pin(async { text("done") }));
    let client = Client::of(server).await;
    let unkeyed = || call("work", json!({ "n": 1 }));
    assert_eq!(client.call(unkeyed()).await.success(), "done");
    assert!(client.call(unkeyed()).await.is_replay());
}

async fn without_its_tables_a_store_refuses_calls_and_does_not_run_them<D: Database>() {
    let world = World::<D>::new(|_, _| Box::pin(async { text("done") })).await;
    world.database.execute(D::DROP_RECORDS).await;
    assert_wire("not_set_up", &world.client.call(keyed("work", 1)).await);
    let unkeyed = call("work", json!({ "n": 1 }));
    assert_wire(
        "not_set_up_without_a_key",
        &world.client.call(unkeyed).await,
    );
    assert_eq!(world.server.runs(), 0);
}

// SQLite has one writer, so a handler may not hold it for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_sqlite_a_handler_past_its_limit_is_rolled_back_and_others_go_on() {
    let database = Sqlite::create().await;
    let store = database
        .builder(2)
        .with_transaction_limit(Duration::from_secs(1))
        .build()
        .unwrap();
    let world = World::<Sqlite>::on(
        database,
        store,
        |_| {},
        |connection, call| {
            Box::pin(async move {
                let name = format!("run {}", call.earlier);
                effect::<Sqlite>(connection, &name).await.unwrap();
                if call.earlier == 0 {
                    std::future::pending::<()>().await;
                }
                text(name)
            })
        },
    )
    .await;
    let slow = world.client.send(keyed("work", 1)).await.unwrap();
    until(async || world.server.runs() == 1).await;
    let other = world.client.call(call("work", json!({ "n": 2 }))).await;
    assert_wire("handler_over_time", &slow.answer().await.unwrap());
    assert_eq!(other.success(), "run 1");
    assert_eq!(world.client.call(keyed("work", 1)).await.success(), "run 2");
    world.assert_effects(&["run 1", "run 2"]).await;
}

on_each_store! {
    a_key_that_is_none_is_refused,
    a_call_without_a_key_is_refused_where_one_is_required,
    refusals_are_tool_results_where_the_server_says_so,
    a_replay_says_so_to_the_model_where_the_server_asks_for_it,
    keys_in_each_place_are_one_key,
    callers_beyond_the_limit_of_those_who_wait_are_told_so,
    callers_beyond_their_quota_of_new_calls_are_told_so,
    a_handler_past_its_timeout_is_told_dropped_and_run_anew,
    without_its_tables_a_store_refuses_calls_and_does_not_run_them,
}
