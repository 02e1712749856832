//! Calls without a key, on a tool that deduplicates explicit keys only: they run each time, in a
//! transaction that records nothing and is guarded all the same.

use mcp_idempotent_tests::{
    client::{CallExt as _, call},
    database::{Database, Postgres, Stored, effect},
};
use rmcp::model::CallToolRequestParams;
use serde_json::json;

use crate::{
    server::{is_error, protocol_error, text},
    wire::assert_wire,
    world::{World, on_each_store},
};

const SUCCEED: i64 = 0;
const SAY_ERROR: i64 = 1;
const FAIL: i64 = 2;
const PANIC: i64 = 3;
const COMMIT: i64 = 4;
const ROLL_BACK: i64 = 5;
const SWALLOW: i64 = 6;

async fn world<D: Database>() -> World<D> {
    World::new(|connection, call| {
        Box::pin(async move {
            effect::<D>(connection, &format!("run {}", call.earlier))
                .await
                .unwrap();
            match call.n {
                SAY_ERROR => return is_error("no"),
                FAIL => return protocol_error("no"),
                PANIC => panic!("the handler panics"),
                COMMIT => drop(D::run(connection, "COMMIT").await),
                ROLL_BACK => drop(D::run(connection, "ROLLBACK").await),
                SWALLOW => drop(D::run(connection, "SELECT * FROM no_such_table").await),
                _ => {}
            }
            text(format!("run {}", call.earlier))
        })
    })
    .await
}

fn unkeyed(n: i64) -> CallToolRequestParams {
    call("work_without_key", json!({ "n": n }))
}

async fn without_a_key_each_call_runs<D: Database>() {
    let world = world::<D>().await;
    for n in 0..3 {
        let answer = world.client.call(unkeyed(SUCCEED)).await;
        assert_eq!(answer.success(), format!("run {n}"));
        assert!(!answer.is_replay());
    }
    world.assert_effects(&["run 0", "run 1", "run 2"]).await;
    world.assert_records(&[]).await;
    let keyed = unkeyed(SUCCEED).with_key("k");
    let first = world.client.call(keyed.clone()).await;
    assert_eq!(world.client.call(keyed).await.unmarked(), first.json);
    world.assert_records(&[Stored::Completed]).await;
}

async fn without_a_key_errors_are_rolled_back_and_given_as_they_are<D: Database>() {
    let world = world::<D>().await;
    let error = world.client.call(unkeyed(SAY_ERROR)).await;
    assert_eq!(error.result()["isError"], true);
    assert_wire(
        "protocol_error_without_key",
        &world.client.call(unkeyed(FAIL)).await,
    );
    assert_wire(
        "handler_panicked_without_a_key",
        &world.client.call(unkeyed(PANIC)).await,
    );
    world.assert_nothing_is_left().await;
}

async fn without_a_key_a_transaction_ended_by_the_handler_is_of_unknown_outcome<D: Database>() {
    for n in [COMMIT, ROLL_BACK] {
        let world = world::<D>().await;
        let answer = world.client.call(unkeyed(n)).await;
        assert_eq!(answer.refusal(), "idempotency_outcome_unknown");
        assert_eq!(answer.outcome(), "unknown");
        world.assert_records(&[]).await;
        // The next one is served on a sound connection.
        let next = world.client.call(unkeyed(SUCCEED)).await;
        assert_eq!(next.success(), "run 1");
        let effects = world.database.effects().await;
        assert!(effects.contains(&"run 1".to_owned()));
    }
}

#[tokio::test]
async fn without_a_key_a_success_from_an_aborted_transaction_never_reaches_the_caller() {
    let world = world::<Postgres>().await;
    let answer = world.client.call(unkeyed(SWALLOW)).await;
    assert_eq!(answer.refusal(), "idempotency_not_committed");
    world.assert_nothing_is_left().await;
}

on_each_store! {
    without_a_key_each_call_runs,
    without_a_key_errors_are_rolled_back_and_given_as_they_are,
    without_a_key_a_transaction_ended_by_the_handler_is_of_unknown_outcome,
}
