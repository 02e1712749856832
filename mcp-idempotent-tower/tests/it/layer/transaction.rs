//! Transaction mode under the layer, on a real SQLite file.

mod ledger;

use std::{collections::HashMap, sync::Arc, time::Duration};

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, KeyRequirement, OnError, ServerExt as _, SqliteStore,
    layer::Rule,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::timeout::TimeoutLayer;

use self::ledger::Ledger;
use super::{key, number, refusal};
use crate::client::{Client, call, connect, params};

fn charge() -> Value {
    json!({ "amount": 7 })
}

async fn keyed(client: &Client, tool: &'static str) -> Value {
    call(client, params(tool, charge(), key("k"))).await
}

#[tokio::test]
async fn record_and_effect_commit_together_and_the_retry_gets_the_result() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone().behind(Rule::transaction())).await;
    for _ in 0..3 {
        assert_eq!(number(&keyed(&client, "charge").await), 1);
    }
    assert_eq!(ledger.charges().await, 1);
    // Without a key the call is not protected, and still has its transaction.
    let answer = call(&client, params("charge", charge(), Value::Null)).await;
    assert_eq!(number(&answer), 2);
    assert_eq!(ledger.charges().await, 2);
}

#[tokio::test]
async fn every_kind_of_tool_can_take_the_transaction() {
    for tool in ["charge", "typed_charge", "dynamic_charge"] {
        let directory = TempDir::new().unwrap();
        let ledger = Ledger::open(&directory).await;
        let client = connect(ledger.clone().behind(Rule::transaction())).await;
        assert_eq!(number(&keyed(&client, tool).await), 1, "{tool}");
        assert_eq!(number(&keyed(&client, tool).await), 1, "{tool}");
        assert_eq!(ledger.charges().await, 1, "{tool}");
    }
}

#[tokio::test]
async fn the_effect_of_an_error_or_a_panic_is_rolled_back() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone().behind(Rule::transaction())).await;
    let answer = call(&client, params("charge_and_fail", Value::Null, key("f"))).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    let answer = call(&client, params("charge_and_panic", Value::Null, key("p"))).await;
    assert_eq!(
        refusal(&answer),
        ("idempotency_handler_panicked", "not_committed")
    );
    assert_eq!(ledger.charges().await, 0);

    let rule = Rule::transaction().with_on_error(OnError::Commit);
    let client = connect(ledger.clone().behind(rule)).await;
    let answer = call(&client, params("charge_and_fail", Value::Null, key("c"))).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert_eq!(ledger.charges().await, 1);
}

#[tokio::test]
async fn a_nested_transaction_is_a_savepoint() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone().behind(Rule::transaction())).await;
    let answer = keyed(&client, "charge_in_a_savepoint").await;
    number(&answer);
    assert_eq!(ledger.charges().await, 1);
}

#[tokio::test]
async fn taking_the_transaction_twice_is_an_error_that_says_so() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone().behind(Rule::transaction())).await;
    let answer = keyed(&client, "take_twice").await;
    assert_eq!(
        refusal(&answer),
        ("idempotency_misconfigured", "not_committed")
    );
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("twice"), "{message}");
}

#[tokio::test]
async fn taking_a_transaction_where_none_is_open_is_an_error_that_says_so() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    for client in [
        connect(ledger.clone()).await,
        connect(ledger.clone().behind(Rule::untouched())).await,
        connect(ledger.clone().behind(Rule::lease(OnError::InDoubt))).await,
    ] {
        for tool in ["charge", "typed_charge", "dynamic_charge"] {
            let answer = call(&client, params(tool, charge(), key(tool))).await;
            assert_eq!(
                refusal(&answer),
                ("idempotency_misconfigured", "not_committed")
            );
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.contains("Rule::transaction()"), "{message}");
        }
    }
    assert_eq!(ledger.charges().await, 0);
}

#[tokio::test]
async fn a_tool_that_never_takes_the_transaction_is_answered_with_an_error() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let rule = Rule::transaction().with_on_error(OnError::Record);
    let client = connect(ledger.clone().behind(rule)).await;
    for _ in 0..2 {
        let answer = call(&client, params("never_take", Value::Null, key("k"))).await;
        assert_eq!(refusal(&answer), ("idempotency_misconfigured", "unknown"));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("without having taken it"), "{message}");
    }
}

#[tokio::test]
async fn a_transaction_that_is_still_held_is_not_committed() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let server = ledger.clone().behind(Rule::transaction());
    let client = connect(server).await;
    let answer = call(&client, params("keep", Value::Null, key("k"))).await;
    assert_eq!(refusal(&answer), ("idempotency_outcome_unknown", "unknown"));
    ledger.let_go.add_permits(1);
    // What was written before and after is rolled back, and the writer is free again.
    assert_eq!(number(&keyed_as(&client, "charge", "other").await), 1);
    assert_eq!(ledger.charges().await, 1);
}

async fn keyed_as(client: &Client, tool: &'static str, as_key: &str) -> Value {
    call(client, params(tool, charge(), key(as_key))).await
}

#[tokio::test]
async fn a_tool_that_only_reads_needs_no_transaction() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let rule = Rule::transaction().with_key(KeyRequirement::Derived);
    let client = connect(ledger.clone().behind(rule)).await;
    for meta in [Value::Null, key("k"), key("k")] {
        let answer = call(&client, params("count", Value::Null, meta)).await;
        assert_eq!(number(&answer), 0);
    }
    assert_eq!(number(&keyed_as(&client, "charge", "c").await), 1);
    let answer = call(&client, params("count", Value::Null, Value::Null)).await;
    assert_eq!(number(&answer), 1);
    let replay = call(&client, params("count", Value::Null, key("k"))).await;
    assert_eq!(number(&replay), 0);
}

#[tokio::test]
async fn a_caller_that_gives_up_does_not_roll_the_effect_back() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let patient = ledger.clone().behind(Rule::transaction());
    let hasty = patient
        .clone()
        .layered(TimeoutLayer::new(Duration::from_secs(2)));
    let hasty = connect(hasty).await;
    let answer = keyed(&hasty, "charge_slowly").await;
    assert_eq!(refusal(&answer), ("call_timed_out", "unknown"));
    ledger.let_go.add_permits(1);
    let patient = connect(patient).await;
    let retry = keyed(&patient, "charge_slowly").await;
    assert_eq!(number(&retry), 1);
    // The first execution's result, not that of a second one.
    assert!(
        retry["result"]["_meta"]["io.github.mcp-idempotent/replayed"].is_object(),
        "{retry}"
    );
    assert_eq!(ledger.charges().await, 1);
}

#[tokio::test]
async fn a_timeout_below_rolls_the_effect_back_and_frees_the_key() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let idempotency = Idempotency::for_stdio("ledger", ledger.store.clone()).unwrap();
    let layer = IdempotencyLayer::new(idempotency, Rule::transaction()).unwrap();
    let server = ledger
        .clone()
        .layered(TimeoutLayer::new(Duration::from_millis(50)))
        .idempotent(layer);
    let client = connect(server).await;
    let answer = keyed(&client, "charge_slowly").await;
    assert_eq!(refusal(&answer), ("call_timed_out", "unknown"));
    assert_eq!(ledger.charges().await, 0);
    ledger.let_go.add_permits(1);
    number(&keyed(&client, "charge_slowly").await);
    assert_eq!(ledger.charges().await, 1);
}

#[tokio::test]
async fn two_servers_on_one_file_have_as_many_effects_as_there_are_keys() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let other = Ledger {
        store: SqliteStore::open(directory.path().join("ledger.db"))
            .await
            .unwrap(),
        ..ledger.clone()
    };
    let one = Arc::new(connect(ledger.clone().behind(Rule::transaction())).await);
    let two = Arc::new(connect(other.behind(Rule::transaction())).await);
    let calls: Vec<_> = (0..200)
        .map(|n| {
            let client = Arc::clone(if n % 2 == 0 { &one } else { &two });
            let as_key = format!("key-{}", n % 67);
            tokio::spawn(async move {
                let answer = keyed_as(&client, "charge", &as_key).await;
                (as_key, number(&answer))
            })
        })
        .collect();
    let mut numbers = HashMap::new();
    for call in calls {
        let (as_key, number) = call.await.unwrap();
        assert_eq!(*numbers.entry(as_key).or_insert(number), number);
    }
    assert_eq!(numbers.len(), 67);
    assert_eq!(ledger.charges().await, 67);
}
