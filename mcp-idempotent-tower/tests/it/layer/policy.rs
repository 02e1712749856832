//! Which calls are protected.

use mcp_idempotent_tower::{
    IdempotencyLayer, KeyRequirement, OnError, ServerExt as _, layer::Rule,
};
use serde_json::{Value, json};

use super::{Mailer, hello, idempotency, key, layer, lease, number, refusal, send};
use crate::client::{call, connect, params};

#[tokio::test]
async fn a_keyed_retry_gets_the_first_result_on_a_new_connection() {
    let server = Mailer::new().idempotent(layer(lease()));
    let first = connect(server.clone()).await;
    assert_eq!(send(&first, key("k")).await, 1);
    drop(first);
    let second = connect(server.clone()).await;
    let answer = call(&second, params("send", hello(), key("k"))).await;
    assert_eq!(number(&answer), 1);
    assert!(
        answer["result"]["_meta"]["io.github.mcp-idempotent/replayed"]["at"].is_string(),
        "{answer}"
    );
    assert_eq!(send(&second, key("another")).await, 2);
    assert_eq!(server.handler().sent(), 2);
}

#[tokio::test]
async fn a_key_used_for_another_call_is_a_conflict() {
    let client = connect(Mailer::new().idempotent(layer(lease()))).await;
    assert_eq!(send(&client, key("k")).await, 1);
    for other in [
        params("send", json!({ "text": "bye" }), key("k")),
        params("send_slowly", hello(), key("k")),
    ] {
        let answer = call(&client, other).await;
        assert_eq!(
            refusal(&answer),
            ("idempotency_key_conflict", "not_committed")
        );
    }
}

#[tokio::test]
async fn calls_without_a_key_pass_unless_derived_keys_are_asked_for() {
    let client = connect(Mailer::new().idempotent(layer(lease()))).await;
    assert_eq!(send(&client, Value::Null).await, 1);
    assert_eq!(send(&client, Value::Null).await, 2);

    let derived = lease().with_key(KeyRequirement::Derived);
    let client = connect(Mailer::new().idempotent(layer(derived))).await;
    assert_eq!(send(&client, Value::Null).await, 1);
    assert_eq!(send(&client, Value::Null).await, 1);
}

#[tokio::test]
async fn a_required_key_is_required() {
    let required = lease().with_key(KeyRequirement::Required);
    let server = Mailer::new().idempotent(layer(required));
    let client = connect(server.clone()).await;
    let answer = call(&client, params("send", hello(), Value::Null)).await;
    assert_eq!(
        refusal(&answer),
        ("idempotency_key_required", "not_committed")
    );
    assert_eq!(server.handler().sent(), 0);
}

#[tokio::test]
async fn a_tool_that_only_reads_is_left_alone_unless_a_key_is_sent() {
    let strict = lease().with_key(KeyRequirement::Required);
    let client = connect(Mailer::new().idempotent(layer(strict))).await;
    let look = |meta| call(&client, params("look", hello(), meta));
    assert_eq!(number(&look(Value::Null).await), 1);
    assert_eq!(number(&look(Value::Null).await), 2);
    assert_eq!(number(&look(key("k")).await), 3);
    assert_eq!(number(&look(key("k")).await), 3);
}

#[tokio::test]
async fn a_name_comes_before_a_predicate_and_that_before_the_default() {
    let layer = IdempotencyLayer::builder(idempotency(), Rule::untouched())
        .with_tools(
            |tool| tool.name.starts_with("send"),
            lease().with_key(KeyRequirement::Derived),
        )
        .with_tools(|tool| tool.name == "send", Rule::untouched())
        .with_tool("send_slowly", lease())
        .build()
        .unwrap();
    let server = Mailer::new().idempotent(layer);
    server.handler().go_on.add_permits(10);
    let client = connect(server).await;
    // The first predicate.
    assert_eq!(send(&client, Value::Null).await, 1);
    assert_eq!(send(&client, Value::Null).await, 1);
    // The name: keys are not derived.
    for expected in [2, 3] {
        let answer = call(&client, params("send_slowly", hello(), Value::Null)).await;
        assert_eq!(number(&answer), expected);
    }
    // The default: not even a key counts.
    for expected in [4, 5] {
        let answer = call(&client, params("look", hello(), key("k"))).await;
        assert_eq!(number(&answer), expected);
    }
}

#[tokio::test]
async fn ignored_arguments_take_no_part() {
    let rule = lease()
        .with_key(KeyRequirement::Derived)
        .with_ignored("text");
    let client = connect(Mailer::new().idempotent(layer(rule))).await;
    assert_eq!(send(&client, Value::Null).await, 1);
    let answer = call(
        &client,
        params("send", json!({ "text": "other" }), Value::Null),
    )
    .await;
    assert_eq!(number(&answer), 1);
}

#[test]
fn rules_that_contradict_themselves_are_refused_when_the_layer_is_built() {
    use std::time::Duration;
    for (rule, expected) in [
        (Rule::lease(OnError::Default), "OnError::InDoubt"),
        (Rule::lease(OnError::Commit), "OnError::InDoubt"),
        (lease().with_retention(Duration::ZERO), "retention"),
        (lease().with_lease(Duration::ZERO), "lease"),
    ] {
        let error = IdempotencyLayer::new(idempotency(), rule).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = IdempotencyLayer::builder(idempotency(), lease())
        .with_tool("send", lease())
        .with_tool("send", Rule::untouched())
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("`send`"), "{error}");
}
