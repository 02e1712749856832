//! Handlers that need more than they were given: a second connection, another tool, themselves.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database, Postgres, Sqlite, effect},
};
use mcp_idempotent_tower::Wait;
use rmcp::{ServerHandler as _, model::CallToolRequestParams};
use serde_json::json;
use sqlx::postgres::PgPoolOptions;

use crate::{
    server::{Server, is_error, text},
    wire::assert_wire,
    world::{World, on_each_store, within_patience},
};

fn keyed(n: i64) -> CallToolRequestParams {
    call("work", json!({ "n": n })).with_key(format!("key-{n}"))
}

/// A handler that asks the pool for a second connection while it holds the first.
async fn greedy(size: u32) -> World<Postgres> {
    let database = Postgres::create().await;
    let pool = PgPoolOptions::new()
        .max_connections(size)
        .acquire_timeout(Duration::from_millis(1500))
        .connect_lazy_with(database.options());
    let store = database
        .builder(pool.clone())
        .with_acquire_timeout(Duration::from_millis(1500))
        .build()
        .unwrap();
    World::on(
        database,
        store,
        |_| {},
        move |connection, call| {
            let pool = pool.clone();
            Box::pin(async move {
                effect::<Postgres>(connection, &format!("effect {}", call.n))
                    .await
                    .unwrap();
                match pool.acquire().await {
                    Ok(mut second) => {
                        Postgres::run(&mut second, "SELECT 1").await.unwrap();
                        text("done")
                    }
                    Err(error) => is_error(error.to_string()),
                }
            })
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_takes_a_second_connection_of_one_fails_in_bounded_time() {
    let world = greedy(1).await;
    let started = Instant::now();
    let answer = world.client.call(call("work", json!({ "n": 1 }))).await;
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(answer.result()["isError"], true);
    assert!(answer.text().contains("pool timed out"), "{}", answer.line);
    world.assert_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_handlers_that_take_a_second_connection_of_sixteen_end_in_bounded_time() {
    let world = greedy(16).await;
    let started = Instant::now();
    let mut sent = Vec::new();
    for n in 0..16 {
        sent.push(
            world
                .client
                .send(call("work", json!({ "n": n })))
                .await
                .unwrap(),
        );
    }
    let mut done = 0;
    for sent in sent {
        let answer = within_patience(sent.answer()).await.unwrap();
        if answer.is_failure() {
            assert_eq!(answer.refusal(), "idempotency_store_unavailable");
        } else if answer.result()["isError"] == true {
            assert!(answer.text().contains("pool timed out"), "{}", answer.line);
        } else {
            done += 1;
        }
    }
    assert!(started.elapsed() < Duration::from_secs(15));
    assert_eq!(world.database.effects().await.len(), done);
    // Afterwards the pool is whole again.
    let later = world.client.call(call("work", json!({ "n": 99 }))).await;
    assert_eq!(later.success(), "done");
}

/// A tool that calls another one (or itself, `n` = 0) through a client of its own.
async fn nesting<D: Database>(size: u32) -> World<D> {
    let database = D::create().await;
    let store = database.store_that_waits(size, Duration::from_millis(1500));
    let slot = Arc::new(OnceLock::<Client>::new());
    let inner = Arc::clone(&slot);
    let world = World::<D>::on(
        database,
        store,
        |policy| {
            policy.wait = Wait::UpTo(Duration::from_millis(1500));
        },
        move |connection, outer| {
            let slot = Arc::clone(&inner);
            Box::pin(async move {
                effect::<D>(connection, &format!("effect {}", outer.n))
                    .await
                    .unwrap();
                if outer.n >= 100 {
                    return text("the inner one");
                }
                let params = if outer.n == 0 {
                    keyed(0)
                } else {
                    call("other_work", json!({ "n": 100 + outer.n }))
                };
                let answer = slot.get().unwrap().call(params).await;
                if answer.is_failure() {
                    is_error(answer.refusal())
                } else {
                    text(answer.success())
                }
            })
        },
    )
    .await;
    assert!(slot.set(Client::of(world.server.clone()).await).is_ok());
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_calls_another_one_gets_its_result() {
    let world = nesting::<Postgres>(4).await;
    assert_eq!(world.client.call(keyed(1)).await.success(), "the inner one");
    world.assert_effects(&["effect 1", "effect 101"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_calls_another_one_on_a_pool_of_one_fails_in_bounded_time() {
    let world = nesting::<Postgres>(1).await;
    let started = Instant::now();
    let answer = world.client.call(call("work", json!({ "n": 1 }))).await;
    assert_eq!(answer.text(), "idempotency_store_unavailable");
    assert_eq!(answer.result()["isError"], true);
    assert!(started.elapsed() < Duration::from_secs(15));
    world.assert_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_tools_that_call_another_one_on_a_pool_of_sixteen_end_in_bounded_time() {
    let world = nesting::<Postgres>(16).await;
    let started = Instant::now();
    let mut sent = Vec::new();
    for n in 1..=16 {
        sent.push(
            world
                .client
                .send(call("work", json!({ "n": n })))
                .await
                .unwrap(),
        );
    }
    for sent in sent {
        let answer = within_patience(sent.answer()).await.unwrap();
        if answer.is_failure() {
            assert_eq!(answer.refusal(), "idempotency_store_unavailable");
        } else {
            let text = answer.text();
            assert!(
                text == "the inner one" || text == "idempotency_store_unavailable",
                "{text}"
            );
        }
    }
    assert!(started.elapsed() < Duration::from_secs(18));
}

// SQLite has one writer, and the outer tool is it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_sqlite_a_tool_that_calls_another_one_fails_in_bounded_time() {
    let world = nesting::<Sqlite>(4).await;
    let started = Instant::now();
    let answer = world.client.call(call("work", json!({ "n": 1 }))).await;
    assert_eq!(answer.text(), "idempotency_store_unavailable");
    assert!(started.elapsed() < Duration::from_secs(15));
    world.assert_nothing_is_left().await;
}

async fn a_tool_that_calls_itself_with_its_own_key_fails_in_bounded_time<D: Database>() {
    let world = nesting::<D>(4).await;
    let started = Instant::now();
    let answer = world.client.call(keyed(0)).await;
    assert_eq!(answer.text(), "idempotency_key_in_progress");
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(world.server.runs(), 1);
    world.assert_effects(&[]).await;
}

/// Calls itself with its own key through the router, in its own task.
async fn a_tool_that_calls_itself_through_the_router_is_told_so_at_once<D: Database>() {
    let slot = Arc::new(OnceLock::<Server<D>>::new());
    let inner = Arc::clone(&slot);
    let world = World::<D>::new(move |_, outer| {
        let server = inner.get().unwrap().clone();
        Box::pin(async move {
            let again = server.call_tool(keyed(outer.n), outer.context);
            match again.await {
                Ok(_) => text("it ran"),
                Err(error) => Err(error),
            }
        })
    })
    .await;
    assert!(slot.set(world.server.clone()).is_ok());
    let started = Instant::now();
    let answer = world.client.call(keyed(1)).await;
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_wire("called_from_itself", &answer);
    assert_eq!(world.server.runs(), 1);
    world.assert_nothing_is_left().await;
}

on_each_store! {
    a_tool_that_calls_itself_with_its_own_key_fails_in_bounded_time,
    a_tool_that_calls_itself_through_the_router_is_told_so_at_once,
}
