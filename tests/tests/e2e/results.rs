//! Results that are easily changed on the way into a store and back.

use mcp_idempotent_tests::{
    client::{Answer, CallExt as _, Client, call},
    database::Database,
};
use mcp_idempotent_tower::wire::REPLAYED;
use rmcp::{
    ErrorData,
    model::{CallToolResult, ContentBlock, ErrorCode},
};
use serde_json::{Value, json};

use crate::{
    server::{ToolResult, text},
    world::{World, on_each_store},
};

/// A result as an author would have it on the wire.
fn result(json: Value) -> ToolResult {
    let result: CallToolResult = serde_json::from_value(json).unwrap();
    Ok(result.into())
}

/// The line without its id and without the marker: byte for byte what the author returned.
fn bytes(answer: &Answer) -> String {
    let mut line = answer.line.clone();
    let id = line.find(r#""id":"#).expect("an id");
    let end = line[id..].find([',', '}']).expect("more after the id");
    line.replace_range(id..=id + end, "");
    if let Some(at) = line.find(&format!(r#""{REPLAYED}":"#)) {
        let end = at + line[at..].find('}').expect("the marker is an object") + 1;
        line.replace_range(at..end, "");
        line = line
            .replace("{,", "{")
            .replace(",}", "}")
            .replace(",,", ",");
    }
    // The marker's own place is no difference either.
    line.replace(r#""_meta":{},"#, "")
        .replace(r#","_meta":{}"#, "")
}

/// The second and third answer are the first, to the byte, and the client reads them the same.
async fn assert_replayed<D: Database>(
    world: &World<D>,
    elsewhere: &Client,
    n: usize,
    returned: &Value,
) {
    let params = call("work", json!({ "n": n })).with_key(format!("key-{n}"));
    let first = world.client.call(params.clone()).await;
    for client in [&world.client, elsewhere] {
        let retry = client.call(params.clone()).await;
        assert!(retry.is_replay(), "{returned}");
        assert_eq!(retry.unmarked(), first.unmarked());
        assert_eq!(bytes(&retry), bytes(&first));
    }
}

async fn a_replay_is_the_first_result_to_the_byte<D: Database>() {
    let structured = |content: Value| {
        json!({
            "content": [{ "type": "text", "text": "see structuredContent" }],
            "structuredContent": content,
        })
    };
    let blocks = |blocks: Value| json!({ "content": blocks });
    let returned = [
        // Postgres' text and jsonb refuse U+0000.
        blocks(json!([{ "type": "text", "text": "a\u{0}b\u{1}\u{7f}\u{2028}\u{fffd}'\\\"💥" }])),
        structured(json!({ "a\u{0}": "\u{0}" })),
        // Beyond what a double can tell apart.
        structured(json!({ "n": 9_007_199_254_740_993_i64, "m": i64::MIN, "l": u64::MAX })),
        // A double stays one.
        structured(json!({ "one": 1.0, "zero": 0.0, "minus": -0.0 })),
        // The shortest text that reads back as the same double.
        structured(
            serde_json::from_str(
                "[0.1, 0.30000000000000004, 1e-7, 5e-324, 2.2250738585072011e-308, \
                 9007199254740993.0, 1.7976931348623157e308, 123456789.12345679, 1e21, 100.0]",
            )
            .unwrap(),
        ),
        structured(json!({ "z": 1, "a": { "y": 1, "b": 2, "": 3, "é": 4, "e\u{301}": 5 } })),
        structured(Value::Null),
        structured(json!({})),
        blocks(json!([])),
        blocks(json!([
            { "type": "image", "data": "aGVsbG8=", "mimeType": "image/png" },
            { "type": "audio", "data": "aGVsbG8=", "mimeType": "audio/wav" },
            {
                "type": "resource_link", "uri": "file:///a.txt", "name": "a", "title": "A",
                "description": "a file", "mimeType": "text/plain", "size": 7
            },
            {
                "type": "resource",
                "resource": {
                    "uri": "file:///a.txt", "mimeType": "text/plain", "text": "hello",
                    "_meta": { "k": 1 }
                }
            },
            {
                "type": "resource",
                "resource": { "uri": "file:///a.bin", "blob": "aGVsbG8=" }
            },
            {
                "type": "text", "text": "for you",
                "annotations": { "audience": ["user"], "priority": 0.5 },
                "_meta": { "a": null }
            },
        ])),
        json!({
            "content": [{ "type": "text", "text": "x" }],
            "_meta": { "author/own": { "z": [1, 2.0, null], "a": "b" }, "another": null },
        }),
        json!({ "content": [{ "type": "text", "text": "x" }], "isError": false }),
        json!({ "content": [{ "type": "text", "text": "no" }], "isError": true }),
        // Larger than what travels inside the finishing statement.
        blocks(json!([{ "type": "text", "text": "\u{0}long ".repeat(50_000) }])),
    ];
    let world = World::<D>::new({
        let returned = returned.clone();
        move |_, call| {
            let returned = returned[usize::try_from(call.n).unwrap()].clone();
            Box::pin(async move { result(returned) })
        }
    })
    .await;
    let elsewhere = world.another_process().await;
    for (n, returned) in returned.iter().enumerate() {
        assert_replayed(&world, &elsewhere, n, returned).await;
    }
    assert_eq!(world.server.runs(), returned.len());
}

async fn structured_content_that_is_null_stays_null<D: Database>() {
    let world = World::<D>::new(|_, _| {
        Box::pin(async move {
            let mut result = CallToolResult::success(vec![ContentBlock::text("x")]);
            result.structured_content = Some(Value::Null);
            Ok(result.into())
        })
    })
    .await;
    let first = world.client.keyed("k", json!({ "n": 1 })).await;
    let retry = world.client.keyed("k", json!({ "n": 1 })).await;
    assert!(retry.is_replay());
    for answer in [&first, &retry] {
        assert!(
            answer.line.contains(r#""structuredContent":null"#),
            "{}",
            answer.line
        );
    }
    assert_eq!(retry.unmarked(), first.json);
}

async fn a_recorded_protocol_error_is_replayed_as_it_was<D: Database>() {
    let world = World::<D>::new(|_, call| {
        Box::pin(async move {
            let data = match call.n {
                0 => None,
                1 => Some(Value::Null),
                _ => Some(json!({ "n": 9_007_199_254_740_993_i64, "f": 1.0, "z": "\u{0}" })),
            };
            Err(ErrorData::new(ErrorCode(-32050), "no\u{0}", data))
        })
    })
    .await;
    for n in 0..3 {
        let params = call("work_that_records_errors", json!({ "n": n })).with_key(format!("k{n}"));
        let first = world.client.call(params.clone()).await;
        let retry = world.client.call(params).await;
        first.error();
        assert_eq!(bytes(&retry), bytes(&first));
    }
    assert_eq!(world.server.runs(), 3);
}

async fn equal_arguments_are_one_call_and_others_are_not<D: Database>() {
    let world =
        World::<D>::new(|_, call| Box::pin(async move { text(format!("run {}", call.earlier)) }))
            .await;
    let first = r#"{"n":1,"b":[1,2],"a":{"x":1.0,"y":"é"}}"#;
    let same = [
        r#"{ "a": {"y":"\u00e9", "x": 1}, "n": 1, "b": [1e0, 2] }"#,
        r#"{"n":1,"b":[1.0,2.0],"a":{"x":1,"y":"é"}}"#,
    ];
    let others = [
        r#"{"n":1,"b":[2,1],"a":{"x":1,"y":"é"}}"#,
        r#"{"n":1,"b":[1,2],"a":{"x":1,"y":"e\u0301"}}"#,
        r#"{"n":1,"b":[1,2],"a":{"x":1,"y":"é","z":null}}"#,
        r#"{"n":1,"b":[1,2],"a":{"x":9007199254740993,"y":"é"}}"#,
    ];
    let params = |text: &str| call("work", serde_json::from_str(text).unwrap());
    world.client.call(params(first)).await.success();
    for text in same {
        assert!(world.client.call(params(text)).await.is_replay(), "{text}");
        let keyed = world.client.call(params(text).with_key("k")).await;
        assert_eq!(keyed.success(), "run 1");
    }
    for text in others {
        assert!(!world.client.call(params(text)).await.is_replay(), "{text}");
        let keyed = world.client.call(params(text).with_key("k")).await;
        assert_eq!(keyed.refusal(), "idempotency_key_conflict", "{text}");
    }
}

on_each_store! {
    a_replay_is_the_first_result_to_the_byte,
    structured_content_that_is_null_stays_null,
    a_recorded_protocol_error_is_replayed_as_it_was,
    equal_arguments_are_one_call_and_others_are_not,
}
