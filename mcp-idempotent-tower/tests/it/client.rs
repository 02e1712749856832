//! A real rmcp client on a real rmcp server, in one process.

#[cfg(feature = "client")]
mod bounds;
#[cfg(feature = "client")]
mod call;
#[cfg(feature = "client-reqwest")]
mod http;
#[cfg(feature = "client")]
mod link;
#[cfg(feature = "client")]
mod refusal;
#[cfg(feature = "client")]
mod retry;
#[cfg(feature = "client")]
mod server;

use rmcp::{
    RoleClient, ServerHandler, ServiceExt,
    model::{CallToolRequest, CallToolRequestParams, ClientRequest, MetaObject},
    service::{RunningService, ServiceError},
};
use serde_json::{Map, Value, json};

pub(crate) type Client = RunningService<RoleClient, ()>;

/// Serves `server` over a pipe, and connects.
pub(crate) async fn connect(server: impl ServerHandler) -> Client {
    let (here, there) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        let running = server.serve(there).await.unwrap();
        running.waiting().await.unwrap();
    });
    ().serve(here).await.unwrap()
}

/// A call of `tool`; `arguments` and `meta` are JSON objects.
pub(crate) fn params(tool: &'static str, arguments: Value, meta: Value) -> CallToolRequestParams {
    let mut params = CallToolRequestParams::new(tool);
    params.arguments = object(arguments);
    params.meta = object(meta).map(|meta| MetaObject(meta).into());
    params
}

fn object(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(object) => Some(object),
        Value::Null => None,
        other => panic!("not an object: {other}"),
    }
}

/// Sends a call, and gives its answer as JSON: `{"result": …}` or `{"error": …}`.
pub(crate) async fn call(client: &Client, params: CallToolRequestParams) -> Value {
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    match client.send_request(request).await {
        Ok(result) => json!({ "result": result }),
        Err(ServiceError::McpError(error)) => json!({ "error": error }),
        Err(error) => panic!("no answer: {error}"),
    }
}

/// The same, with arguments under a key.
pub(crate) async fn keyed(client: &Client, tool: &'static str, arguments: Value) -> Value {
    let key = json!({ "idempotency-key": "k" });
    call(client, params(tool, arguments, key)).await
}

/// What a refusal says, in either form.
pub(crate) fn refused(answer: &Value) -> &Value {
    let in_result = &answer["result"]["_meta"]["io.github.mcp-idempotent/refusal"];
    let data = match in_result {
        Value::Object(_) => {
            assert_eq!(answer["result"]["isError"], true, "{answer}");
            in_result
        }
        _ => &answer["error"]["data"],
    };
    assert!(data["type"].is_string(), "not refused: {answer}");
    data
}

/// The type and the outcome of a refusal.
pub(crate) fn refusal(answer: &Value) -> (&str, &str) {
    let data = refused(answer);
    let word = |name: &str| data[name].as_str().unwrap();
    (word("type"), word("outcome"))
}

/// Waits for something that another task is about to do.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came true");
}
