//! Equal calls under different keys, over the wire, on the stores with transactions.

use mcp_idempotent_tests::{
    client::{Answer, CallExt as _, Client, call},
    database::{Database, effect},
};
use mcp_idempotent_tower::{Policy, RotatedKeys};
use serde_json::json;

use crate::{
    server::{Server, text},
    wire::assert_wire,
    world::{Gate, engine, on_each_store},
};

/// A server under these rules, whose handler writes a row and then waits at the gate.
fn server<D: Database>(database: &D, rotated_keys: RotatedKeys, gate: Gate) -> Server<D> {
    let mut policy = Policy::default();
    policy.rotated_keys = rotated_keys;
    let idempotency = engine(database.store(2))
        .with_announced_replays(true)
        .with_policy(policy)
        .build()
        .unwrap();
    Server::new(idempotency, move |connection, call| {
        let gate = gate.clone();
        Box::pin(async move {
            let name = format!("run {}", call.earlier);
            effect::<D>(connection, &name).await.unwrap();
            gate.pass().await;
            text(name)
        })
    })
}

async fn ask(client: &Client, key: &str) -> Answer {
    let params = call("work", json!({ "n": 1 })).with_key(key);
    client.call(params).await
}

/// A gate that stands open for all handlers of a test.
fn opened() -> Gate {
    let gate = Gate::new();
    for _ in 0..4 {
        gate.open();
    }
    gate
}

async fn a_rotated_key_is_told_so_in_each_of_the_three_ways<D: Database>() {
    for (rotated_keys, name, effects) in [
        (RotatedKeys::Report, "rotated_key_reported", 2),
        (RotatedKeys::Refuse, "rotated_key_refused", 1),
        (RotatedKeys::Join, "rotated_key_joined", 1),
    ] {
        let database = D::create().await;
        let client = Client::of(server(&database, rotated_keys, opened())).await;
        assert_eq!(ask(&client, "a").await.success(), "run 0");
        let second = ask(&client, "b").await;
        assert_wire(name, &second);
        assert!(ask(&client, "a").await.is_replay());
        assert_eq!(database.effects().await.len(), effects, "{name}");
        // What it was told once, it is told again.
        let retry = ask(&client, "b").await;
        match rotated_keys {
            RotatedKeys::Refuse => assert_wire(name, &retry),
            _ => assert!(retry.is_replay(), "{}", retry.line),
        }
        assert_eq!(
            ask(&client, "new-intent:b").await.text(),
            format!("run {effects}")
        );
        assert_eq!(database.effects().await.len(), effects + 1, "{name}");
    }
}

async fn a_key_that_is_rotated_while_the_first_call_runs_has_no_effect<D: Database>() {
    for rotated_keys in [RotatedKeys::Refuse, RotatedKeys::Join] {
        let database = D::create().await;
        let gate = Gate::new();
        let running = Client::of(server(&database, rotated_keys, gate.clone())).await;
        // Another process would be another server on the same database.
        let other = Client::of(server(&database, rotated_keys, opened())).await;
        let params = |key| call("work", json!({ "n": 1 })).with_key(key);
        let first = running.send(params("a")).await.unwrap();
        gate.arrival().await;
        if rotated_keys == RotatedKeys::Refuse {
            assert_wire("rotated_key_refused_while_running", &ask(&other, "b").await);
            gate.open();
        } else {
            let second = other.send(params("b")).await.unwrap();
            gate.open();
            let joined = second.answer().await.unwrap();
            assert_eq!(joined.text(), "run 0");
            assert!(joined.is_replay());
        }
        assert_eq!(first.answer().await.unwrap().success(), "run 0");
        assert_eq!(database.effects().await, ["run 0"]);
    }
}

on_each_store! {
    a_rotated_key_is_told_so_in_each_of_the_three_ways,
    a_key_that_is_rotated_while_the_first_call_runs_has_no_effect,
}
