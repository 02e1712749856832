//! A replay is the first answer, but for the marker.

use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent};
use rmcp::{
    ErrorData,
    model::{CallToolResult, JsonObject},
    tool, tool_router,
};
use serde_json::{Value, json};

use crate::wire::{Wire, take_marker};

#[derive(Clone)]
struct Echo {
    idempotency: Idempotency<MemoryStore>,
}

#[tool_router(server_handler)]
impl Echo {
    fn new() -> Self {
        Self {
            idempotency: Idempotency::for_stdio("echo", MemoryStore::new()).unwrap(),
        }
    }

    /// Returns the result that it is given.
    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn result(&self, mut arguments: JsonObject) -> Result<CallToolResult, ErrorData> {
        let result = arguments.remove("result").unwrap_or_default();
        serde_json::from_value(result)
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))
    }
}

#[tokio::test]
async fn a_replay_equals_the_first_answer_except_for_the_marker() {
    let text = |text: &str| json!([{ "type": "text", "text": text }]);
    let results = [
        json!({ "content": text("plain") }),
        json!({ "content": text("nul \u{0} and \u{1F980}") }),
        json!({ "content": text("n"), "structuredContent": { "n": 9_007_199_254_740_993_u64 } }),
        json!({ "content": text("n"), "structuredContent": { "n": u64::MAX, "m": i64::MIN } }),
        json!({ "content": text("n"), "structuredContent": { "one": 1.0, "z": 1, "tiny": 5e-324 } }),
        json!({ "content": text("n"), "structuredContent": { "b": 1.000_000_000_000_000_2, "a": [] } }),
        json!({ "content": text("n"), "structuredContent": null }),
        json!({ "content": text("n"), "structuredContent": [1, "two", null] }),
        json!({ "content": [] }),
        json!({ "content": text("failed"), "isError": true }),
        json!({ "content": text("fine"), "isError": false }),
        json!({ "content": [{ "type": "image", "data": "aGVsbG8=", "mimeType": "image/png" }] }),
        json!({ "content": [{
            "type": "resource_link", "uri": "file:///a", "name": "a", "_meta": { "k": 1 },
        }] }),
        json!({ "content": [{
            "type": "resource", "resource": { "uri": "file:///a", "text": "body" },
        }] }),
        json!({ "content": text("m"), "_meta": { "trace": "x", "nested": { "a": [1.0, null] } } }),
    ];
    let mut wire = Wire::connect(Echo::new());
    for (index, result) in results.into_iter().enumerate() {
        let params = json!({
            "name": "result",
            "arguments": { "result": result },
            "_meta": { "idempotency-key": format!("key-{index}") },
        });
        let mut first = wire.call(params.clone()).await;
        let mut second = wire.call(params).await;
        assert!(first["result"].is_object(), "{first}");
        assert!(!take_marker(&mut first), "{first}");
        assert!(take_marker(&mut second), "{second}");
        // As text: `1` and `1.0` are different bytes.
        assert_eq!(first.to_string(), second.to_string());
    }
}

#[tokio::test]
async fn the_marker_says_when_the_first_call_ended() {
    let mut wire = Wire::connect(Echo::new());
    let params = json!({ "name": "result", "arguments": { "result": { "content": [] } } });
    wire.call(params.clone()).await;
    let mut replay = wire.call(params).await;
    let at = replay["result"]["_meta"]["io.github.mcp-idempotent/replayed"]["at"].take();
    assert!(
        matches!(&at, Value::String(at) if at.starts_with("20") && at.ends_with('Z')),
        "{at}"
    );
}
