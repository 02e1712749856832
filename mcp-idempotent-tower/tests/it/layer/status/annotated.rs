//! Status requests about tools that take their key in an argument, and about annotated ones.

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, InDoubt, MemoryStore, OnDoubt, OnError, Policy, ServerExt as _,
    Verdict, idempotent, layer::Rule, wire,
};
use rmcp::{
    handler::server::{tool::ToolRouter, wrapper::Parameters},
    model::Tool,
    tool, tool_handler, tool_router,
};
use serde_json::{Value, json};

use super::{super::Message, status};
use crate::client::{Client, call, connect, params};

#[derive(Clone)]
struct Desk {
    idempotency: Idempotency<MemoryStore>,
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Desk {
    #[idempotent(on_error = in_doubt, key_argument = "order")]
    #[tool]
    async fn annotated(&self, Parameters(message): Parameters<Message>) -> String {
        message.text
    }

    #[tool]
    async fn layered(&self, Parameters(message): Parameters<Message>) -> String {
        message.text
    }

    #[idempotent(on_error = in_doubt, on_doubt = fail)]
    #[tool]
    async fn fails(&self) {}

    #[idempotent(on_error = in_doubt, on_doubt = rerun)]
    #[tool]
    async fn reruns(&self) {}

    #[idempotent(on_error = in_doubt, on_doubt = verify(Self::find_out))]
    #[tool]
    async fn verifies(&self) {}

    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn says_nothing(&self) {}
}

impl Desk {
    async fn find_out(&self, _: InDoubt<'_>) -> Verdict {
        Verdict::Unknown
    }

    async fn connect(on_doubt: OnDoubt) -> Client {
        let mut policy = Policy::default();
        policy.on_doubt = on_doubt;
        let idempotency = Idempotency::builder("desk", MemoryStore::new())
            .with_one_caller()
            .with_policy(policy)
            .build()
            .unwrap();
        let rule = Rule::lease(OnError::InDoubt).with_key_argument("order");
        let layer = IdempotencyLayer::new(idempotency.clone(), rule).unwrap();
        let desk = Self {
            idempotency,
            tool_router: Self::tool_router(),
        };
        connect(desk.idempotent(layer)).await
    }
}

#[tool_handler(router = self.tool_router)]
impl rmcp::ServerHandler for Desk {}

#[tokio::test]
async fn a_call_with_its_key_in_an_argument_is_found_by_tool_and_arguments() {
    let client = Desk::connect(OnDoubt::Fail).await;
    for tool in ["annotated", "layered"] {
        let arguments = json!({ "text": "hello", "order": tool });
        let asked = json!({ "tool": tool, "arguments": arguments });
        assert_eq!(status(&client, asked.clone()).await["state"], "not_seen");
        let answer = call(&client, params(tool, arguments, Value::Null)).await;
        assert_eq!(answer["result"]["content"][0]["text"], "hello", "{answer}");
        let found = status(&client, asked.clone()).await;
        assert_eq!(found["state"], "completed", "{tool}: {found}");
        assert_eq!(found["result"], answer["result"], "{tool}: {found}");

        // The same key in both places is one key, and two keys are none.
        let with_key = |key: &str| {
            let mut asked = asked.clone();
            asked["key"] = key.into();
            asked
        };
        let found = status(&client, with_key(tool)).await;
        assert_eq!(found["state"], "completed", "{tool}: {found}");
        let found = status(&client, with_key("another")).await;
        assert_eq!(found["error"]["code"], -32602, "{tool}: {found}");
        let message = found["error"]["message"].as_str().unwrap();
        assert!(message.contains("two different keys"), "{message}");
    }
}

#[tokio::test]
async fn a_contract_says_what_becomes_of_a_call_in_doubt() {
    let in_doubt = |tool: &Tool| tool.meta.as_ref().unwrap()[wire::CONTRACT]["inDoubt"].clone();
    // By itself a definition says what the attribute says.
    for (tool, said) in [
        (Desk::fails_tool_attr(), json!("fail")),
        (Desk::reruns_tool_attr(), json!("rerun")),
        (Desk::verifies_tool_attr(), json!("verify")),
        (Desk::says_nothing_tool_attr(), Value::Null),
    ] {
        assert_eq!(in_doubt(&tool), said, "{}", tool.name);
    }
    // Behind the layer the server's policy fills in what the attribute leaves out.
    for (server, says_nothing) in [
        (OnDoubt::Fail, Value::Null),
        (OnDoubt::Rerun, json!("rerun")),
    ] {
        let tools = Desk::connect(server).await.list_all_tools().await.unwrap();
        for (name, said) in [
            ("fails", json!("fail")),
            ("reruns", json!("rerun")),
            ("verifies", json!("verify")),
            ("says_nothing", says_nothing.clone()),
            ("layered", says_nothing),
        ] {
            let tool = tools.iter().find(|tool| tool.name == name).unwrap();
            assert_eq!(in_doubt(tool), said, "{name} under {server:?}");
        }
    }
}
