//! The author's own extractors, in any order, after the claim.

use mcp_idempotent_tower::{Idempotency, MemoryStore, RecordQuery, idempotent};
use rmcp::{
    Peer, RoleServer,
    handler::server::{
        common::{Extension, RequestId},
        tool::ToolName,
        wrapper::Parameters,
    },
    model::{JsonObject, RequestMetaObject},
    service::RequestContext,
    tool, tool_router,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::client::{call, connect, params};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Greeting {
    name: String,
}

#[derive(Clone)]
struct Server {
    idempotency: Idempotency<MemoryStore>,
}

#[tool_router(server_handler)]
impl Server {
    fn new() -> Self {
        Self {
            idempotency: Idempotency::for_stdio("extractors", MemoryStore::new()).unwrap(),
        }
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    #[expect(clippy::too_many_arguments, reason = "one of each extractor")]
    async fn all(
        &self,
        context: RequestContext<RoleServer>,
        token: CancellationToken,
        ToolName(name): ToolName,
        meta: RequestMetaObject,
        Parameters(Greeting { name: who }): Parameters<Greeting>,
        peer: Peer<RoleServer>,
        id: RequestId,
        after_parameters: JsonObject,
    ) -> String {
        let sees_meta = context.meta.get("mine") == Some(&json!(1)) && meta.get("mine").is_some();
        json!({
            "tool": name,
            "who": who,
            "seesMeta": sees_meta,
            "cancelled": token.is_cancelled(),
            "closed": peer.is_transport_closed(),
            "sameId": id.0 == context.id,
            "left": after_parameters,
        })
        .to_string()
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn missing(&self, Extension(missing): Extension<u8>) -> String {
        missing.to_string()
    }
}

#[tokio::test]
async fn every_extractor_sees_the_whole_call_in_the_order_of_the_parameters() {
    let client = connect(Server::new()).await;
    let answer = call(
        &client,
        params("all", json!({ "name": "Ada" }), json!({ "mine": 1 })),
    )
    .await;
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    let seen: Value = serde_json::from_str(text).unwrap();
    assert_eq!(
        seen,
        json!({
            "tool": "all",
            "who": "Ada",
            "seesMeta": true,
            "cancelled": false,
            "closed": false,
            "sameId": true,
            "left": {},
        })
    );
}

#[tokio::test]
async fn arguments_that_do_not_parse_are_rmcps_own_answer_and_leave_the_key_free() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    let key = json!({ "idempotency-key": "k" });
    let answer = call(&client, params("all", json!({ "nam": "Ada" }), key.clone())).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(
        text.starts_with("failed to deserialize parameters: unknown field `nam`"),
        "{text}"
    );
    let records = server.idempotency.list(&RecordQuery::default()).await;
    assert!(records.unwrap().is_empty());

    let answer = call(&client, params("all", json!({ "name": "Ada" }), key)).await;
    assert_eq!(answer["result"]["isError"], false, "{answer}");
}

#[tokio::test]
async fn an_extractor_that_refuses_leaves_no_record() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    let answer = call(&client, params("missing", Value::Null, Value::Null)).await;
    assert_eq!(
        answer["error"],
        json!({ "code": -32602, "message": "missing extension u8" })
    );
    let records = server.idempotency.list(&RecordQuery::default()).await;
    assert!(records.unwrap().is_empty());
}
