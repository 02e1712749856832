//! Every kind of return type that rmcp takes.

use std::{future::Future, pin::Pin};

use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent};
use rmcp::{
    ErrorData, Json,
    model::{CallToolResponse, CallToolResult, ContentBlock},
    tool, tool_router,
};
use serde_json::{Value, json};

use crate::client::{call, connect, params};

#[derive(Clone)]
struct Server {
    idempotency: Idempotency<MemoryStore>,
}

#[tool_router(server_handler)]
impl Server {
    #[idempotent(on_error = release)]
    #[tool]
    async fn nothing(&self) {}

    #[idempotent(on_error = release)]
    #[tool]
    fn text(&self) -> String {
        "text".into()
    }

    #[idempotent(on_error = release)]
    #[tool]
    async fn text_or_text(&self) -> Result<String, String> {
        Err("failed".into())
    }

    #[idempotent(on_error = release)]
    #[tool]
    async fn json(&self) -> Json<u8> {
        Json(1)
    }

    #[idempotent(on_error = release)]
    #[tool]
    fn json_or_error(&self) -> Result<Json<u8>, ErrorData> {
        Err(ErrorData::internal_error("broken", None))
    }

    #[idempotent(on_error = release)]
    #[tool]
    async fn result(&self) -> CallToolResult {
        CallToolResult::success(vec![ContentBlock::text("result")])
    }

    #[idempotent(on_error = release)]
    #[tool]
    async fn result_or_error(&self) -> Result<CallToolResult, ErrorData> {
        Ok(CallToolResult::error(vec![ContentBlock::text("refused")]))
    }

    #[idempotent(on_error = release)]
    #[tool]
    async fn response(&self) -> CallToolResponse {
        CallToolResult::success(vec![]).into()
    }

    #[idempotent(on_error = release)]
    #[tool]
    fn boxed(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async { "boxed".to_owned() })
    }

    #[idempotent(on_error = release)]
    #[tool]
    fn opaque(&self) -> impl Future<Output = String> + Send {
        std::future::ready("opaque".to_owned())
    }
}

#[tokio::test]
async fn every_return_type_of_rmcp_is_answered_as_rmcp_does() {
    let server = Server {
        idempotency: Idempotency::for_stdio("returns", MemoryStore::new()).unwrap(),
    };
    let client = connect(server).await;
    let text =
        |text: &str| json!({ "content": [{ "type": "text", "text": text }], "isError": false });
    let failed =
        |text: &str| json!({ "content": [{ "type": "text", "text": text }], "isError": true });
    for (tool, expected) in [
        (
            "nothing",
            json!({ "result": { "content": [], "isError": false } }),
        ),
        ("text", json!({ "result": text("text") })),
        ("text_or_text", json!({ "result": failed("failed") })),
        ("json", {
            let mut expected = json!({ "result": text("1") });
            expected["result"]["structuredContent"] = 1.into();
            expected
        }),
        (
            "json_or_error",
            json!({ "error": { "code": -32603, "message": "broken" } }),
        ),
        ("result", json!({ "result": text("result") })),
        ("result_or_error", json!({ "result": failed("refused") })),
        (
            "response",
            json!({ "result": { "content": [], "isError": false } }),
        ),
        ("boxed", json!({ "result": text("boxed") })),
        ("opaque", json!({ "result": text("opaque") })),
    ] {
        let mut answer = call(&client, params(tool, Value::Null, Value::Null)).await;
        if tool == "json" {
            // A peer of an older revision is not sent structured output that is no object.
            answer["result"]["structuredContent"] = 1.into();
        }
        assert_eq!(answer, expected, "{tool}");
    }
}
