//! A tool's definition stays what it was.

use std::sync::Arc;

use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent};
use rmcp::{
    ErrorData, Json,
    handler::server::wrapper::Parameters,
    model::{JsonObject, MetaObject, Tool},
    tool, tool_router,
};
use serde_json::{Value, json};

use crate::client::{call, connect, params};

/// Where a tool's contract stands in its `_meta`.
const CONTRACT: &str = "io.github.mcp-idempotent/idempotency";

/// A doc comment that is not the schema's business.
#[derive(Debug, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
struct Tree {
    /// The name of the node.
    name: String,
    #[serde(default)]
    children: Vec<Tree>,
}

/// A type that rmcp takes for its own by its name.
mod own {
    use rmcp::{ErrorData, handler::server::common::FromContextPart};

    #[derive(Debug, schemars::JsonSchema)]
    pub(super) struct Parameters {
        #[schemars(rename = "next")]
        _next: Option<Box<Parameters>>,
    }

    impl<C> FromContextPart<C> for Parameters {
        fn from_context_part(_: &mut C) -> Result<Self, ErrorData> {
            Ok(Self { _next: None })
        }
    }
}

fn object(value: Value) -> JsonObject {
    serde_json::from_value(value).unwrap()
}

fn authors_meta() -> MetaObject {
    MetaObject(object(json!({ "author": true })))
}

fn authors_schema() -> Arc<JsonObject> {
    Arc::new(object(json!({ "type": "object", "title": "mine" })))
}

struct Plain;

#[tool_router]
impl Plain {
    /// Grows a tree.
    /// In two lines.
    ///
    /// And a paragraph.
    #[tool]
    async fn grow(&self, Parameters(tree): Parameters<Tree>) -> Result<Json<Tree>, ErrorData> {
        Ok(Json(tree))
    }

    #[tool(
        name = "other-name",
        title = "Other",
        description = "Said here.",
        annotations(title = "T", destructive_hint = false, open_world_hint = true),
        input_schema = authors_schema(),
        output_schema = authors_schema(),
        meta = authors_meta()
    )]
    fn named(&self) -> String {
        String::new()
    }

    #[tool]
    async fn recursive(&self, _: own::Parameters) {}

    #[tool]
    async fn listed(&self) -> Json<Vec<Tree>> {
        Json(Vec::new())
    }

    #[tool]
    fn r#type(
        &self,
        tree: rmcp::handler::server::wrapper::Parameters<Tree>,
    ) -> Result<String, String> {
        Ok(tree.0.name)
    }
}

#[derive(Clone)]
struct Protected {
    idempotency: Idempotency<MemoryStore>,
}

#[tool_router]
impl Protected {
    /// Grows a tree.
    /// In two lines.
    ///
    /// And a paragraph.
    #[idempotent(on_error = release)]
    #[tool]
    async fn grow(&self, Parameters(tree): Parameters<Tree>) -> Result<Json<Tree>, ErrorData> {
        Ok(Json(tree))
    }

    #[idempotent(on_error = release)]
    #[tool(
        name = "other-name",
        title = "Other",
        description = "Said here.",
        annotations(title = "T", destructive_hint = false, open_world_hint = true),
        input_schema = authors_schema(),
        output_schema = authors_schema(),
        meta = authors_meta()
    )]
    fn named(&self) -> String {
        String::new()
    }

    #[idempotent(on_error = release)]
    #[tool]
    async fn recursive(&self, _: own::Parameters) {}

    #[idempotent(on_error = release)]
    #[tool]
    async fn listed(&self) -> Json<Vec<Tree>> {
        Json(Vec::new())
    }

    #[idempotent(on_error = release)]
    #[tool]
    fn r#type(
        &self,
        tree: rmcp::handler::server::wrapper::Parameters<Tree>,
    ) -> Result<String, String> {
        Ok(tree.0.name)
    }
}

#[test]
fn an_annotated_tool_is_defined_as_its_twin_but_for_the_contract() {
    let plain = Plain::tool_router().list_all();
    let protected = Protected::tool_router().list_all();
    assert_eq!(plain.len(), 5);
    assert_eq!(plain.len(), protected.len());
    for (plain, mut protected) in plain.into_iter().zip(protected) {
        let contract = protected
            .meta
            .as_mut()
            .and_then(|meta| meta.remove(CONTRACT));
        assert_eq!(contract, Some(json!({ "mode": "lease" })));
        protected.meta = protected.meta.filter(|meta| !meta.is_empty());
        assert_eq!(plain, protected);
    }
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Strict {
    amount: i64,
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Own {
    /// The author's own words.
    request: Option<String>,
}

#[derive(Clone)]
struct Keyed {
    idempotency: Idempotency<MemoryStore>,
}

#[tool_router(server_handler)]
impl Keyed {
    #[idempotent(
        on_error = release,
        key = required,
        key_argument = "request",
        retention = "36h",
        window = "1500ms"
    )]
    #[tool]
    async fn strict(&self, Parameters(strict): Parameters<Strict>) -> String {
        strict.amount.to_string()
    }

    #[idempotent(on_error = release, key = explicit, key_argument = "/request")]
    #[tool]
    async fn own(&self, Parameters(own): Parameters<Own>) -> String {
        own.request.unwrap_or_default()
    }

    #[idempotent(on_error = release, key = derived, key_argument = "request")]
    #[tool]
    async fn bare(&self, arguments: JsonObject) -> String {
        Value::Object(arguments).to_string()
    }
}

fn tool(name: &str) -> Tool {
    Keyed::tool_router().get(name).unwrap().clone()
}

#[test]
fn a_key_argument_that_is_not_the_authors_is_added_to_the_schema() {
    insta::assert_json_snapshot!(tool("strict"));
    let bare = tool("bare");
    assert!(bare.input_schema["properties"]["request"].is_object());
    assert!(!bare.input_schema.contains_key("required"));
}

#[test]
fn a_key_argument_of_the_authors_is_left_as_it_is() {
    let schema = rmcp::handler::server::common::schema_for_input::<Own>().unwrap();
    assert_eq!(tool("own").input_schema, schema);
}

#[tokio::test]
async fn an_added_key_argument_is_removed_before_the_arguments_are_parsed() {
    let server = Keyed {
        idempotency: Idempotency::for_stdio("keyed", MemoryStore::new()).unwrap(),
    };
    let client = connect(server).await;
    for (tool, arguments, expected) in [
        ("strict", json!({ "amount": 7, "request": "k1" }), "7"),
        ("own", json!({ "request": "k2" }), "k2"),
        ("bare", json!({ "a": 1, "request": "k3" }), r#"{"a":1}"#),
    ] {
        for _ in 0..2 {
            let answer = call(&client, params(tool, arguments.clone(), Value::Null)).await;
            assert_eq!(answer["result"]["content"][0]["text"], expected, "{answer}");
        }
    }
}
