//! Callers with and without a scope, and what is sent without a key.

use mcp_idempotent_tower::{Denied, IdempotencyBuilder, Scope, SqliteStore};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Desk, TOOLS};
use crate::client::{self, Client, call, connect, params};

/// Who calls stands in the call's `_meta`, as a client would never be believed.
fn by_name(builder: IdempotencyBuilder<SqliteStore>) -> IdempotencyBuilder<SqliteStore> {
    builder.with_scope_from(|context| {
        let who = context.meta.get("who").and_then(Value::as_str);
        who.map(Scope::new)
            .ok_or_else(|| Denied::new("who are you?"))
    })
}

async fn refused(client: &Client, tool: &'static str, meta: Value) -> Value {
    let answer = call(client, params(tool, Value::Null, meta)).await;
    client::refused(&answer)["type"].clone()
}

async fn text(client: &Client, tool: &'static str, meta: Value) -> Value {
    let answer = call(client, params(tool, Value::Null, meta)).await;
    let text = &answer["result"]["content"][0]["text"];
    assert!(text.is_string(), "{tool}: {answer}");
    text.clone()
}

#[tokio::test]
async fn a_denied_caller_is_denied_with_and_without_a_key() {
    let directory = TempDir::new().unwrap();
    let desk = Desk::open(&directory, by_name).await;
    let client = connect(desk.behind_the_layer()).await;
    for tool in TOOLS.into_iter().chain(["keyed_write", "look"]) {
        for meta in [
            Value::Null,
            json!({ "idempotency-key": "k" }),
            json!({ "idempotency-key": 7 }),
        ] {
            let refusal = refused(&client, tool, meta.clone()).await;
            assert_eq!(refusal, "idempotency_unauthorized", "{tool}, {meta}");
        }
    }
    assert_eq!(desk.runs(), 0);
    assert!(desk.take_seen().is_empty());
    // A tool that nothing touches is its author's own.
    assert_eq!(text(&client, "untouched", Value::Null).await, "run 1");
}

#[tokio::test]
async fn the_set_up_hook_of_a_call_without_a_key_sees_the_resolved_scope() {
    let directory = TempDir::new().unwrap();
    let desk = Desk::open(&directory, by_name).await;
    let client = connect(desk.behind_the_layer()).await;
    for tool in TOOLS {
        for who in ["ann", "bob"] {
            text(&client, tool, json!({ "who": who })).await;
            assert_eq!(desk.take_seen(), [Some(who.to_owned())], "{tool}");
        }
    }
    assert_eq!(desk.runs(), 8);
}

#[tokio::test]
async fn the_set_up_hook_sees_no_scope_where_nobody_said_one() {
    let directory = TempDir::new().unwrap();
    let desk = Desk::open(&directory, |builder| {
        builder.with_scope_from_http(|_| Ok(Scope::new("somebody over HTTP")))
    })
    .await;
    let client = connect(desk.behind_the_layer()).await;
    for tool in TOOLS {
        text(&client, tool, Value::Null).await;
        assert_eq!(desk.take_seen(), [None], "{tool}");
        let refusal = refused(&client, tool, json!({ "idempotency-key": "k" })).await;
        assert_eq!(refusal, "idempotency_misconfigured", "{tool}");
        assert!(desk.take_seen().is_empty(), "{tool}");
    }
    assert_eq!(desk.runs(), 4);
}

#[tokio::test]
async fn one_caller_has_one_scope_with_and_without_a_key() {
    let directory = TempDir::new().unwrap();
    let desk = Desk::open(&directory, IdempotencyBuilder::with_one_caller).await;
    let client = connect(desk.behind_the_layer()).await;
    for tool in TOOLS {
        text(&client, tool, Value::Null).await;
        text(&client, tool, json!({ "idempotency-key": tool })).await;
        let stdio = || Some("stdio".to_owned());
        assert_eq!(desk.take_seen(), [stdio(), stdio()], "{tool}");
    }
}
