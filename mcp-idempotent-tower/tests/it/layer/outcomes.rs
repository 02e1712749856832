//! What is recorded of a handler that did not simply succeed, in lease mode.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_tower::{
    Denied, Idempotency, IdempotencyLayer, MemoryStore, OnError, RefusalForm, ServerExt as _,
    layer::Rule,
};
use serde_json::{Value, json};
use tower::timeout::TimeoutLayer;

use super::{Mailer, hello, key, layer, lease, number, refusal, send};
use crate::client::{Client, call, connect, params};

async fn keyed(client: &Client, tool: &'static str) -> Value {
    call(client, params(tool, Value::Null, key("k"))).await
}

#[tokio::test]
async fn an_error_result_under_a_key_is_recorded() {
    let server = Mailer::new().idempotent(layer(lease()));
    let client = connect(server.clone()).await;
    for _ in 0..2 {
        let answer = keyed(&client, "fail").await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert_eq!(answer["result"]["content"][0]["text"], "1");
    }
    assert_eq!(server.handler().sent(), 1);
}

#[tokio::test]
async fn an_error_result_frees_the_key_where_an_error_proves_that_nothing_happened() {
    let server = Mailer::new().idempotent(layer(Rule::lease(OnError::Release)));
    let client = connect(server.clone()).await;
    for run in ["1", "2"] {
        let answer = keyed(&client, "fail").await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert_eq!(answer["result"]["content"][0]["text"], run);
    }
    assert_eq!(server.handler().sent(), 2);
}

#[tokio::test]
async fn a_protocol_error_means_what_the_rule_says() {
    let server = Mailer::new().idempotent(layer(lease()));
    let client = connect(server.clone()).await;
    assert_eq!(keyed(&client, "fail_badly").await["error"]["message"], "1");
    let again = keyed(&client, "fail_badly").await;
    assert_eq!(refusal(&again), ("idempotency_outcome_unknown", "unknown"));
    assert_eq!(server.handler().sent(), 1);

    let server = Mailer::new().idempotent(layer(Rule::lease(OnError::Release)));
    let client = connect(server.clone()).await;
    assert_eq!(keyed(&client, "fail_badly").await["error"]["message"], "1");
    assert_eq!(keyed(&client, "fail_badly").await["error"]["message"], "2");
}

#[tokio::test]
async fn a_panic_is_answered_and_leaves_the_call_in_doubt() {
    let server = Mailer::new().idempotent(layer(Rule::lease(OnError::Release)));
    let client = connect(server.clone()).await;
    let answer = keyed(&client, "panic").await;
    assert_eq!(
        refusal(&answer),
        ("idempotency_handler_panicked", "unknown")
    );
    let again = keyed(&client, "panic").await;
    assert_eq!(refusal(&again), ("idempotency_outcome_unknown", "unknown"));
    assert_eq!(server.handler().sent(), 1);
}

#[tokio::test]
async fn arguments_that_do_not_parse_are_answered_and_recorded_as_an_error_result() {
    let server = Mailer::new().idempotent(layer(lease()));
    let client = connect(server.clone()).await;
    let malformed = params("send", json!({ "txt": 1 }), key("k"));
    for is_replay in [false, true] {
        let answer = call(&client, malformed.clone()).await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert!(
            text.starts_with("failed to deserialize parameters:"),
            "{text}"
        );
        let meta = &answer["result"]["_meta"]["io.github.mcp-idempotent/replayed"];
        assert_eq!(meta.is_object(), is_replay, "{answer}");
    }
    let corrected = call(&client, params("send", hello(), key("k"))).await;
    assert_eq!(
        refusal(&corrected),
        ("idempotency_key_conflict", "not_committed")
    );
    assert_eq!(send(&client, key("new")).await, 1);
}

#[tokio::test]
async fn a_tool_that_does_not_exist_is_an_error_that_means_what_the_rule_says() {
    for (on_error, again) in [
        (OnError::InDoubt, None),
        (OnError::Release, Some("tool not found")),
    ] {
        let client = connect(Mailer::new().idempotent(layer(Rule::lease(on_error)))).await;
        let unknown = params("sned", hello(), key("k"));
        let answer = call(&client, unknown.clone()).await;
        assert_eq!(answer["error"]["message"], "tool not found", "{answer}");
        let answer = call(&client, unknown).await;
        match again {
            Some(message) => assert_eq!(answer["error"]["message"], message, "{answer}"),
            None => assert_eq!(refusal(&answer), ("idempotency_outcome_unknown", "unknown")),
        }
    }
}

#[tokio::test]
async fn a_refusal_goes_to_whoever_made_the_key() {
    let by_argument = || params("send", json!({ "text": "bye", "key": "k" }), Value::Null);
    let by_meta = || params("send", json!({ "text": "bye" }), key("k"));
    for (form, argument, meta) in [
        (RefusalForm::ByKeyMaker, "result", "error"),
        (RefusalForm::Error, "error", "error"),
        (RefusalForm::Result, "result", "result"),
    ] {
        let idempotency = Idempotency::builder("mailer", MemoryStore::new())
            .with_one_caller()
            .with_refusal_form(form)
            .build()
            .unwrap();
        let layer = IdempotencyLayer::new(idempotency, lease().with_key_argument("key")).unwrap();
        let client = connect(Mailer::new().idempotent(layer)).await;
        assert_eq!(send(&client, key("k")).await, 1);
        for (params, member) in [(by_argument(), argument), (by_meta(), meta)] {
            let answer = call(&client, params).await;
            assert!(answer[member].is_object(), "{form:?}: {answer}");
            let expected = ("idempotency_key_conflict", "not_committed");
            assert_eq!(refusal(&answer), expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_told_to_whoever_made_the_key() {
    let server = || {
        let layered = Mailer::new().layered(TimeoutLayer::new(Duration::from_millis(5)));
        layered.idempotent(layer(lease()))
    };
    let above = || {
        let protected = Mailer::new().idempotent(layer(lease()));
        protected.layered(TimeoutLayer::new(Duration::from_millis(5)))
    };
    for (meta, member) in [(key("k"), "error"), (Value::Null, "result")] {
        for client in [connect(server()).await, connect(above()).await] {
            let answer = call(&client, params("send_slowly", hello(), meta.clone())).await;
            assert!(answer[member].is_object(), "{answer}");
            assert_eq!(refusal(&answer), ("call_timed_out", "unknown"));
        }
    }
}

#[tokio::test]
async fn the_authorize_hook_is_asked_before_a_replay() {
    let withdrawn = Arc::new(AtomicBool::new(false));
    let grant = Arc::clone(&withdrawn);
    let idempotency = Idempotency::builder("mailer", MemoryStore::new())
        .with_one_caller()
        .with_authorize(move |_, tool| {
            let denied = grant.load(Ordering::SeqCst) && tool == "send";
            Box::pin(async move {
                if denied {
                    return Err(Denied::new("withdrawn"));
                }
                Ok(())
            })
        })
        .build()
        .unwrap();
    let layer = IdempotencyLayer::new(idempotency, lease()).unwrap();
    let client = connect(Mailer::new().idempotent(layer)).await;
    assert_eq!(send(&client, key("k")).await, 1);
    withdrawn.store(true, Ordering::SeqCst);
    let answer = call(&client, params("send", hello(), key("k"))).await;
    assert_eq!(refusal(&answer), ("idempotency_unauthorized", "unknown"));
    withdrawn.store(false, Ordering::SeqCst);
    assert_eq!(
        number(&call(&client, params("send", hello(), key("k"))).await),
        1
    );
}
