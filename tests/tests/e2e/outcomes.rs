//! Each row of the table of outcomes, in transaction mode.

use std::time::Duration;

use mcp_idempotent_tests::{
    client::{CallExt as _, call},
    database::{Database, Postgres, Sqlite, Stored, effect},
};
use mcp_idempotent_tower::{OnExpired, Store as _};
use rmcp::model::CallToolRequestParams;
use serde_json::json;

use crate::{
    server::text,
    wire::assert_wire,
    world::{Gate, World, done, on_each_store, until, writing},
};

/// Writes one effect, and answers which run it was.
async fn counting<D: Database>() -> World<D> {
    World::new(writing::<D, _>(done, |call| {
        text(format!("run {} of {}", call.earlier, call.n))
    }))
    .await
}

/// As [`counting`], and waits at the gate after the effect.
async fn gated<D: Database>() -> (Gate, World<D>) {
    let gate = Gate::new();
    let world = World::new(gate.after::<D, _>(done, |call| {
        text(format!("run {} of {}", call.earlier, call.n))
    }))
    .await;
    (gate, world)
}

fn keyed(tool: &str, n: i64) -> CallToolRequestParams {
    call(tool, json!({ "n": n })).with_key("k")
}

async fn a_new_call_executes_and_is_recorded<D: Database>() {
    let world = counting::<D>().await;
    let answer = world.client.call(keyed("work", 1)).await;
    assert_eq!(answer.success(), "run 0 of 1");
    assert!(!answer.is_replay());
    world.assert_effects(&["done"]).await;
    world.assert_records(&[Stored::Completed]).await;
}

async fn a_retry_gets_the_first_result_and_a_marker<D: Database>() {
    let world = counting::<D>().await;
    for params in [keyed("work", 1), call("work", json!({ "n": 2 }))] {
        let first = world.client.call(params.clone()).await;
        let retry = world.client.call(params).await;
        assert!(retry.is_replay());
        assert_eq!(retry.unmarked(), first.json);
    }
    assert_eq!(world.server.runs(), 2);
    world.assert_effects(&["done", "done"]).await;
    assert_wire("replay", &world.client.call(keyed("work", 1)).await);
}

async fn a_retry_in_another_process_gets_the_first_result<D: Database>() {
    let world = counting::<D>().await;
    let first = world.client.call(keyed("work", 1)).await;
    let elsewhere = world.another_process().await;
    let retry = elsewhere.call(keyed("work", 1)).await;
    assert!(retry.is_replay());
    assert_eq!(retry.unmarked(), first.json);
    world.assert_effects(&["done"]).await;
}

async fn duplicates_of_a_running_call_join_and_get_its_result<D: Database>() {
    let (gate, world) = gated::<D>().await;
    let first = world.client.send(keyed("work", 1)).await.unwrap();
    gate.arrival().await;
    let mut joined = Vec::new();
    for _ in 0..3 {
        joined.push(world.client.send(keyed("work", 1)).await.unwrap());
    }
    let engine = world.server.idempotency.engine();
    until(async || engine.waiting() == 3).await;
    gate.open();
    let first = first.answer().await.unwrap();
    assert!(!first.is_replay());
    for sent in joined {
        let answer = sent.answer().await.unwrap();
        assert!(answer.is_replay());
        assert_eq!(answer.unmarked(), first.json);
    }
    assert_eq!(world.server.runs(), 1);
    world.assert_effects(&["done"]).await;
}

async fn a_key_used_for_something_else_is_a_conflict<D: Database>() {
    let world = counting::<D>().await;
    let first = world.client.call(keyed("work", 1)).await;
    for other in [keyed("work", 2), keyed("other_work", 1)] {
        let answer = world.client.call(other).await;
        assert!(!answer.line.contains(first.success()), "{}", answer.line);
        assert_wire("conflict", &answer);
    }
    assert_eq!(world.server.runs(), 1);
    world.assert_effects(&["done"]).await;
    // The first one's result is still there.
    assert!(world.client.call(keyed("work", 1)).await.is_replay());
}

async fn a_conflict_with_a_running_call_is_answered_while_it_runs<D: Database>() {
    let (gate, world) = gated::<D>().await;
    let first = world.client.send(keyed("work", 1)).await.unwrap();
    gate.arrival().await;
    for other in [keyed("work", 2), keyed("other_work", 1)] {
        assert_wire("conflict", &world.client.call(other).await);
    }
    gate.open();
    assert_eq!(first.answer().await.unwrap().success(), "run 0 of 1");
    assert_eq!(world.server.runs(), 1);
}

#[tokio::test]
async fn a_conflict_with_a_call_that_runs_in_another_process_is_answered_while_it_runs() {
    let (gate, world) = gated::<Postgres>().await;
    let elsewhere = world.another_process().await;
    let first = world.client.send(keyed("work", 1)).await.unwrap();
    gate.arrival().await;
    for other in [keyed("work", 2), keyed("other_work", 1)] {
        assert_wire("conflict", &elsewhere.call(other).await);
    }
    gate.open();
    assert_eq!(first.answer().await.unwrap().success(), "run 0 of 1");
    world.assert_effects(&["done"]).await;
}

// SQLite cannot see what runs elsewhere under a key.
#[tokio::test]
async fn in_sqlite_a_conflict_with_a_call_in_another_process_is_answered_once_that_has_ended() {
    let (gate, world) = gated::<Sqlite>().await;
    let elsewhere = world.another_process().await;
    let first = world.client.send(keyed("work", 1)).await.unwrap();
    gate.arrival().await;
    let other = elsewhere.send(keyed("work", 2)).await.unwrap();
    gate.open();
    assert_eq!(first.answer().await.unwrap().success(), "run 0 of 1");
    assert_wire("conflict", &other.answer().await.unwrap());
    world.assert_effects(&["done"]).await;
}

async fn a_duplicate_in_another_process_waits_and_gets_the_first_result<D: Database>() {
    let (gate, world) = gated::<D>().await;
    let elsewhere = world.another_process().await;
    let first = world.client.send(keyed("work", 1)).await.unwrap();
    gate.arrival().await;
    let duplicate = elsewhere.send(keyed("work", 1)).await.unwrap();
    // It runs nothing meanwhile: the server counts its own calls only when they are all one's.
    gate.open();
    let first = first.answer().await.unwrap();
    let duplicate = duplicate.answer().await.unwrap();
    assert!(duplicate.is_replay());
    assert_eq!(duplicate.unmarked(), first.json);
    assert_eq!(world.server.runs(), 1);
    world.assert_effects(&["done"]).await;
}

async fn a_duplicate_past_the_wait_bound_is_told_that_the_call_is_in_progress<D: Database>() {
    let (gate, world) = gated::<D>().await;
    let first = world.client.send(keyed("hasty_work", 1)).await.unwrap();
    gate.arrival().await;
    assert_wire(
        "in_progress",
        &world.client.call(keyed("hasty_work", 1)).await,
    );
    gate.open();
    let first = first.answer().await.unwrap();
    let retry = world.client.call(keyed("hasty_work", 1)).await;
    assert_eq!(retry.unmarked(), first.json);
    assert_eq!(world.server.runs(), 1);
}

#[tokio::test]
async fn a_duplicate_elsewhere_past_the_wait_bound_is_told_that_the_call_is_in_progress() {
    let (gate, world) = gated::<Postgres>().await;
    let elsewhere = world.another_process().await;
    let first = world.client.send(keyed("hasty_work", 1)).await.unwrap();
    gate.arrival().await;
    assert_wire("in_progress", &elsewhere.call(keyed("hasty_work", 1)).await);
    gate.open();
    assert!(!first.answer().await.unwrap().is_replay());
}

async fn where_waiting_is_rejected_a_duplicate_is_answered_at_once<D: Database>() {
    let (gate, world) = gated::<D>().await;
    let first = world.client.send(keyed("impatient_work", 1)).await.unwrap();
    gate.arrival().await;
    assert_wire(
        "in_progress",
        &world.client.call(keyed("impatient_work", 1)).await,
    );
    gate.open();
    let first = first.answer().await.unwrap();
    let retry = world.client.call(keyed("impatient_work", 1)).await;
    assert_eq!(retry.unmarked(), first.json);
}

async fn an_expired_key_is_a_new_call<D: Database>() {
    let world = counting::<D>().await;
    let first = world.client.call(keyed("work", 1)).await;
    world.database.age(Duration::from_secs(23 * 60 * 60)).await;
    assert!(world.client.call(keyed("work", 1)).await.is_replay());
    world.database.age(Duration::from_secs(2 * 60 * 60)).await;
    let second = world.client.call(keyed("work", 1)).await;
    assert!(!second.is_replay());
    assert_ne!(first.success(), second.success());
    world.assert_effects(&["done", "done"]).await;
    world.assert_records(&[Stored::Completed]).await;
}

async fn an_expired_key_is_free_for_another_call<D: Database>() {
    let world = counting::<D>().await;
    world.client.call(keyed("work", 1)).await.success();
    world.database.age(Duration::from_secs(25 * 60 * 60)).await;
    let other = world.client.call(keyed("other_work", 2)).await;
    assert_eq!(other.success(), "run 1 of 2");
}

async fn a_derived_key_lasts_for_its_window<D: Database>() {
    let world = counting::<D>().await;
    let unkeyed = || call("work", json!({ "n": 1 }));
    world.client.call(unkeyed()).await.success();
    world.database.age(Duration::from_secs(9 * 60)).await;
    assert!(world.client.call(unkeyed()).await.is_replay());
    world.database.age(Duration::from_secs(2 * 60)).await;
    assert!(!world.client.call(unkeyed()).await.is_replay());
    world.assert_effects(&["done", "done"]).await;
}

async fn an_expired_key_is_refused_where_the_author_says_so<D: Database>() {
    let world = World::<D>::with_policy(
        |policy| policy.on_expired = OnExpired::Refuse,
        writing::<D, _>(done, |_| text("done")),
    )
    .await;
    world.client.call(keyed("work", 1)).await.success();
    world.database.age(Duration::from_secs(25 * 60 * 60)).await;
    assert_wire("expired", &world.client.call(keyed("work", 1)).await);
    world.store.sweep(100).await.unwrap();
    world.assert_records(&[Stored::Tombstone]).await;
    assert_wire("expired", &world.client.call(keyed("work", 1)).await);
    assert_eq!(world.server.runs(), 1);
    // Past the tombstone's own time the key is free.
    world
        .database
        .age(Duration::from_secs(8 * 24 * 60 * 60))
        .await;
    assert!(!world.client.call(keyed("work", 1)).await.is_replay());
    assert_eq!(world.server.runs(), 2);
}

async fn a_call_in_doubt_is_not_executed_again<D: Database>() {
    let world = World::<D>::new(|connection, _| {
        Box::pin(async move {
            effect::<D>(connection, "perhaps").await.unwrap();
            drop(D::run(connection, "COMMIT").await);
            text("done")
        })
    })
    .await;
    assert_wire(
        "ended_by_handler",
        &world.client.call(keyed("work", 1)).await,
    );
    world.assert_records(&[Stored::InDoubt]).await;
    let elsewhere = world.another_process().await;
    for client in [&world.client, &elsewhere] {
        assert_wire("in_doubt", &client.call(keyed("work", 1)).await);
        assert_wire("conflict", &client.call(keyed("work", 2)).await);
    }
    assert_eq!(world.server.runs(), 1);
    // Past the retention of any result, and until its own has ended.
    let day = Duration::from_secs(24 * 60 * 60);
    world.database.age(89 * day).await;
    world.store.sweep(100).await.unwrap();
    assert_wire("in_doubt", &world.client.call(keyed("work", 1)).await);
    assert_eq!(world.server.runs(), 1);
    world.database.age(2 * day).await;
    world.client.call(keyed("work", 1)).await.error();
    assert_eq!(world.server.runs(), 2);
}

async fn without_its_store_a_call_is_not_executed<D: Database>() {
    let world = counting::<D>().await;
    world.database.close(&world.store).await;
    for (said, params) in [
        ("store_unavailable", keyed("work", 1)),
        (
            "store_unavailable_without_a_key",
            call("work", json!({ "n": 1 })),
        ),
    ] {
        assert_wire(said, &world.client.call(params).await);
    }
    assert_eq!(world.server.runs(), 0);
}

async fn a_result_too_large_to_store_is_given_once_and_never_made_again<D: Database>() {
    let gate = Gate::new();
    let world = World::<D>::with_policy(
        |policy| policy.max_result_bytes = 1000,
        gate.after::<D, _>(done, |_| text("x".repeat(2000))),
    )
    .await;
    let first = world.client.send(keyed("work", 1)).await.unwrap();
    gate.arrival().await;
    let joined = world.client.send(keyed("work", 1)).await.unwrap();
    until(async || world.server.idempotency.engine().waiting() == 1).await;
    gate.open();
    let first = first.answer().await.unwrap();
    assert_eq!(first.success(), "x".repeat(2000));
    let joined = joined.answer().await.unwrap();
    assert!(joined.is_replay());
    assert_eq!(joined.unmarked(), first.json);
    world.assert_records(&[Stored::TooLarge]).await;
    let elsewhere = world.another_process().await;
    for client in [&world.client, &elsewhere] {
        assert_wire("result_too_large", &client.call(keyed("work", 1)).await);
    }
    assert_eq!(world.server.runs(), 1);
    world.assert_effects(&["done"]).await;
}

on_each_store! {
    a_new_call_executes_and_is_recorded,
    a_retry_gets_the_first_result_and_a_marker,
    a_retry_in_another_process_gets_the_first_result,
    duplicates_of_a_running_call_join_and_get_its_result,
    a_key_used_for_something_else_is_a_conflict,
    a_conflict_with_a_running_call_is_answered_while_it_runs,
    a_duplicate_in_another_process_waits_and_gets_the_first_result,
    a_duplicate_past_the_wait_bound_is_told_that_the_call_is_in_progress,
    where_waiting_is_rejected_a_duplicate_is_answered_at_once,
    an_expired_key_is_a_new_call,
    an_expired_key_is_free_for_another_call,
    a_derived_key_lasts_for_its_window,
    an_expired_key_is_refused_where_the_author_says_so,
    a_call_in_doubt_is_not_executed_again,
    without_its_store_a_call_is_not_executed,
    a_result_too_large_to_store_is_given_once_and_never_made_again,
}
