//! The request that asks what became of a call.

mod annotated;
mod next;
#[cfg(feature = "sqlite")]
mod secret;

use std::sync::Arc;

use mcp_idempotent_tower::{
    Denied, Idempotency, IdempotencyLayer, KeyRequirement, MemoryStore, Scope, ServerExt as _,
    layer::Rule, wire,
};
use rmcp::model::{ClientRequest, CustomRequest, ServerResult};
use rmcp::service::ServiceError;
use serde_json::{Value, json};

use super::{Mailer, hello, idempotency, key, layer, lease, number, send, slowly, until};
use crate::client::{Client, call, connect, params};

/// `{"state": …}`, or `{"error": …}`.
pub(super) async fn status(client: &Client, asked: Value) -> Value {
    let request = CustomRequest::new(wire::STATUS_METHOD, Some(asked));
    match client
        .send_request(ClientRequest::CustomRequest(request))
        .await
    {
        // Not one of the other results that an untagged union could take it for.
        Ok(ServerResult::CustomResult(result)) => result.0,
        Ok(other) => panic!("taken for {other:?}"),
        Err(ServiceError::McpError(error)) => json!({ "error": error }),
        Err(error) => panic!("no answer: {error}"),
    }
}

fn asked(key: &str) -> Value {
    json!({ "key": key, "tool": "send", "arguments": hello() })
}

#[tokio::test]
async fn a_key_that_was_not_seen_is_never_a_reason_for_another() {
    let client = connect(Mailer::new().idempotent(layer(lease()))).await;
    for asked in [
        asked("k"),
        json!({ "key": "k" }),
        json!({ "_meta": key("k") }),
    ] {
        let status = status(&client, asked).await;
        assert_eq!(status["state"], "not_seen", "{status}");
        assert_eq!(status["next"], "retry_same_key");
    }
    // Asking has claimed nothing.
    assert_eq!(send(&client, key("k")).await, 1);
}

#[tokio::test]
async fn the_status_of_a_tool_without_protection_is_no_invitation_to_repeat_its_calls() {
    let layer = IdempotencyLayer::builder(idempotency(), lease())
        .with_tool("send", Rule::untouched())
        .build()
        .unwrap();
    let client = connect(Mailer::new().idempotent(layer)).await;
    assert_eq!(send(&client, key("k")).await, 1);
    let status = status(&client, asked("k")).await;
    let data = &status["error"]["data"];
    assert_eq!(data["type"], "status_request_invalid", "{status}");
    assert_eq!(
        (&data["outcome"], &data["action"]),
        (&json!("unknown"), &json!("ask_operator"))
    );
}

#[tokio::test]
async fn the_result_is_given_for_the_very_call_only() {
    let client = connect(Mailer::new().idempotent(layer(lease()))).await;
    let answer = call(&client, params("send", hello(), key("k"))).await;
    let found = status(&client, asked("k")).await;
    assert_eq!(found["state"], "completed", "{found}");
    assert_eq!(found["result"], answer["result"]);
    assert!(found["completedAt"].is_string());
    for other in [
        json!({ "key": "k" }),
        json!({ "key": "k", "tool": "send" }),
        json!({ "key": "k", "tool": "send", "arguments": { "text": "bye" } }),
        json!({ "key": "k", "tool": "look", "arguments": hello() }),
    ] {
        let found = status(&client, other).await;
        assert_eq!(found["state"], "completed", "{found}");
        assert_eq!(found.get("result"), None, "{found}");
    }
}

#[tokio::test]
async fn a_recorded_error_is_given_as_it_was() {
    let client = connect(Mailer::new().idempotent(layer(lease()))).await;
    let answer = call(&client, params("fail", Value::Null, key("k"))).await;
    let found = status(&client, json!({ "key": "k", "tool": "fail" })).await;
    assert_eq!(found["result"], answer["result"]);
    assert_eq!(found["result"]["isError"], true, "{found}");
}

#[tokio::test]
async fn a_running_call_is_in_progress_and_one_that_broke_off_in_doubt() {
    let server = Mailer::new().idempotent(layer(lease()));
    let mailer = server.handler().clone();
    let client = Arc::new(connect(server).await);
    let running = slowly(&client, key("k"));
    until("began", || mailer.sent() == 1).await;
    let found = status(&client, json!({ "key": "k" })).await;
    assert_eq!(found["state"], "in_progress", "{found}");
    assert_eq!(found["next"], "wait");
    mailer.go_on.add_permits(1);
    assert_eq!(number(&running.await.unwrap()), 1);
    assert_eq!(
        status(&client, json!({ "key": "k" })).await["state"],
        "completed"
    );

    call(&client, params("panic", Value::Null, key("p"))).await;
    let found = status(&client, json!({ "key": "p" })).await;
    assert_eq!(found["state"], "in_doubt", "{found}");
    assert_eq!(found["next"], "ask_operator");
}

#[tokio::test]
async fn a_call_without_a_key_is_asked_for_by_itself() {
    let derived = lease()
        .with_key(KeyRequirement::Derived)
        .with_ignored("text");
    let client = connect(Mailer::new().idempotent(layer(derived))).await;
    let call = json!({ "tool": "send", "arguments": hello() });
    assert_eq!(status(&client, call.clone()).await["state"], "not_seen");
    assert_eq!(send(&client, Value::Null).await, 1);
    let found = status(&client, call).await;
    assert_eq!(found["result"]["structuredContent"]["number"], 1, "{found}");
    let found = status(&client, json!({ "tool": "send", "arguments": {} })).await;
    assert_eq!(found["result"]["structuredContent"]["number"], 1, "{found}");
}

#[tokio::test]
async fn a_request_that_names_no_call_is_refused() {
    let client = connect(Mailer::new().idempotent(layer(lease()))).await;
    for asked in [
        json!({}),
        json!({ "key": "" }),
        json!({ "key": 5 }),
        json!({ "key": "a", "_meta": key("b") }),
        json!({ "key": "a", "tool": 5 }),
        json!({ "key": "a", "tool": "send", "arguments": [] }),
        // This tool's calls without a key are not recorded.
        json!({ "tool": "send", "arguments": hello() }),
    ] {
        let status = status(&client, asked.clone()).await;
        assert_eq!(status["error"]["code"], -32602, "{asked}: {status}");
        let data = json!({
            "type": "status_request_invalid", "outcome": "unknown", "action": "retry_same_key",
        });
        assert_eq!(status["error"]["data"], data, "{asked}");
    }
}

#[tokio::test]
async fn scope_and_authorize_are_asked() {
    let scoped = |name: &'static str| {
        Idempotency::builder("mailer", MemoryStore::new())
            .with_scope_from(move |context| {
                let who = context.meta.get("who").and_then(Value::as_str);
                who.map(Scope::new).ok_or_else(|| Denied::new(name))
            })
            .with_authorize(|_, tool| {
                let denied = tool == "look";
                Box::pin(async move {
                    if denied {
                        Err(Denied::new("not yours"))
                    } else {
                        Ok(())
                    }
                })
            })
            .build()
            .unwrap()
    };
    let layer = IdempotencyLayer::new(scoped("who?"), lease()).unwrap();
    let client = connect(Mailer::new().idempotent(layer)).await;
    let ann = json!({ "idempotency-key": "k", "who": "ann" });
    assert_eq!(send(&client, ann).await, 1);
    let as_who = |who: &str, tool: Value| {
        let mut asked = json!({ "key": "k", "arguments": hello(), "_meta": { "who": who } });
        asked["tool"] = tool;
        asked
    };
    let found = status(&client, as_who("ann", "send".into())).await;
    assert_eq!(found["state"], "completed", "{found}");
    let found = status(&client, as_who("bob", "send".into())).await;
    assert_eq!(found["state"], "not_seen", "{found}");
    let found = status(&client, as_who("ann", "look".into())).await;
    assert_eq!(found["error"]["message"], "not yours", "{found}");
    let mut unnamed = as_who("ann", Value::Null);
    unnamed.as_object_mut().unwrap().remove("tool");
    let found = status(&client, unnamed).await;
    assert!(
        found["error"]["message"]
            .as_str()
            .unwrap()
            .contains("`tool`"),
        "{found}"
    );
    let found = status(&client, json!({ "key": "k", "tool": "send" })).await;
    assert_eq!(found["error"]["message"], "who?", "{found}");
}

#[tokio::test]
async fn without_the_wrapper_there_is_no_such_method() {
    let client = connect(Mailer::new().layered(layer(lease()))).await;
    let found = status(&client, asked("k")).await;
    assert_eq!(found["error"]["code"], -32601, "{found}");
}
