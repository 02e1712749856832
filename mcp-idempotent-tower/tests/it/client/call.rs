//! Which key a call carries, and where.

use mcp_idempotent_tower::client::{
    Call, RetryPolicy, WithIdempotencyKey as _, random_key, replayed_at,
};
use rmcp::model::{CallToolRequestParams, CallToolResponse};
use serde_json::{Value, json};

use super::{
    link::{Fault, Sent, connect},
    params,
    server::Server,
};

#[test]
fn random_keys_are_valid_and_differ() {
    let (first, second) = (random_key(), random_key());
    assert_ne!(first, second);
    assert_eq!(first.as_str().len(), 36);
}

#[test]
fn a_key_takes_the_place_of_both_names() {
    let both = json!({
        "idempotency-key": "old",
        "io.github.mcp-idempotent/idempotency-key": "old",
        "other": 1,
    });
    let key = random_key();
    let params = params("charge", Value::Null, both).with_idempotency_key(&key);
    assert_eq!(
        serde_json::to_value(params.meta).unwrap(),
        json!({ "idempotency-key": key.as_str(), "other": 1 })
    );
}

#[test]
fn a_key_that_a_call_brings_is_kept() {
    for name in [
        "idempotency-key",
        "io.github.mcp-idempotent/idempotency-key",
    ] {
        let call = Call::keyed(params("charge", Value::Null, json!({ name: "mine" })));
        assert_eq!(call.key(), Some("mine"));
    }
}

#[test]
fn a_fresh_key_stays_the_same_with_its_call() {
    let call = Call::keyed(CallToolRequestParams::new("charge"));
    assert_eq!(call.key(), call.clone().key());
    assert_ne!(
        call.key(),
        Call::keyed(CallToolRequestParams::new("charge")).key()
    );
    assert_eq!(
        Call::unkeyed(CallToolRequestParams::new("charge")).key(),
        None
    );
}

#[test]
fn a_key_argument_counts_only_where_the_call_has_it() {
    let by_argument = |arguments: Value| {
        Call::keyed(params("charge", arguments, Value::Null)).with_key_argument("/request/id")
    };
    let call = by_argument(json!({ "request": { "id": "mine" } }));
    assert_eq!(call.key(), Some("mine"));
    for without in [Value::Null, json!({ "request": { "id": null } })] {
        assert_eq!(by_argument(without).key().unwrap().len(), 36);
    }
}

#[tokio::test]
async fn a_tools_entry_tells_whether_keys_help() {
    let (server, sent) = (Server::new(), Sent::default());
    let client = connect(server, Fault::None, &sent).await;
    let tools = client.list_all_tools().await.unwrap();
    let of = |name: &'static str| {
        let tool = tools.iter().find(|tool| tool.name == name).unwrap();
        Call::of(tool, CallToolRequestParams::new(name))
    };
    assert!(of("charge").key().is_some());
    assert_eq!(of("unprotected").key(), None);
    assert_eq!(of("look").key(), None);

    // A tool that takes its key in an argument takes it in `_meta` as well.
    let policy = RetryPolicy::new();
    let call = of("charge_by_argument");
    for is_replay in [false, true] {
        let answer = policy.call(client.peer(), call.clone()).await.unwrap();
        let CallToolResponse::Complete(result) = answer else {
            panic!("no result")
        };
        assert_eq!(replayed_at(&result).is_some(), is_replay);
    }
    let key = json!(call.key().unwrap());
    assert_eq!(sent.keys(), [key.clone(), key]);
}
