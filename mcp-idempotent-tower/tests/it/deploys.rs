//! A retry that meets the next version of its server.

#[cfg(feature = "sqlite")]
mod in_transaction;

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, KeyRequirement, MemoryStore, OnError, RefusalForm,
    ServerExt as _, idempotent, layer::Rule,
};
use rmcp::{
    Json, ServerHandler as _,
    handler::server::wrapper::Parameters,
    model::{ClientRequest, CustomRequest, ServerResult},
    tool, tool_router,
};
use serde_json::{Value, json};

use crate::client::{Client, call, connect, keyed, params};

const REPLAYED: &str = "io.github.mcp-idempotent/replayed";
const REFUSAL: &str = "io.github.mcp-idempotent/refusal";

#[derive(serde::Serialize, schemars::JsonSchema)]
struct Receipt {
    number: u32,
}

/// The next version's.
#[derive(serde::Serialize, schemars::JsonSchema)]
struct ReceiptWithName {
    number: u32,
    name: String,
}

/// What both versions share.
#[derive(Clone)]
struct Shop {
    idempotency: Idempotency<MemoryStore>,
    runs: Arc<AtomicU32>,
}

impl Shop {
    fn new(checked: bool, form: RefusalForm) -> Self {
        let builder = Idempotency::builder("shop", MemoryStore::new())
            .with_one_caller()
            .with_output_schemas_checked(checked)
            .with_refusal_form(form);
        Self {
            idempotency: builder.build().unwrap(),
            runs: Arc::default(),
        }
    }

    fn run(&self) -> u32 {
        self.runs.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn charge(&self, charge: &Charge) -> String {
        assert_eq!((charge.cents, charge.trace_id.len()), (100, 1));
        self.run().to_string()
    }

    fn layer(&self, rule: Rule<MemoryStore>) -> IdempotencyLayer<MemoryStore> {
        IdempotencyLayer::new(self.idempotency.clone(), rule).unwrap()
    }
}

fn lease() -> Rule<MemoryStore> {
    Rule::lease(OnError::InDoubt).with_key(KeyRequirement::Derived)
}

mod before {
    use super::*;

    #[derive(Clone)]
    pub(super) struct Server {
        pub(super) shop: Shop,
    }

    #[tool_router(server_handler)]
    impl Server {
        #[idempotent(on_error = in_doubt, idempotency = self.shop.idempotency)]
        #[tool]
        fn charge(&self) -> String {
            self.shop.run().to_string()
        }

        #[tool]
        fn pay(&self) -> String {
            self.shop.run().to_string()
        }

        #[idempotent(on_error = in_doubt, idempotency = self.shop.idempotency)]
        #[tool]
        fn receipt(&self) -> Json<Receipt> {
            let number = self.shop.run();
            Json(Receipt { number })
        }

        #[tool]
        fn plain_receipt(&self) -> Json<Receipt> {
            self.receipt_unprotected()
        }
    }
}

mod after {
    use super::*;

    #[derive(Clone)]
    pub(super) struct Server {
        pub(super) shop: Shop,
    }

    #[tool_router(server_handler)]
    impl Server {
        #[idempotent(
            on_error = in_doubt, also_known_as = "charge", idempotency = self.shop.idempotency
        )]
        #[tool]
        fn charge_card(&self) -> String {
            self.shop.run().to_string()
        }

        #[tool]
        fn pay_invoice(&self) -> String {
            self.shop.run().to_string()
        }

        #[idempotent(on_error = in_doubt, idempotency = self.shop.idempotency)]
        #[tool]
        fn receipt(&self) -> Json<ReceiptWithName> {
            let number = self.shop.run();
            let name = "new".to_owned();
            Json(ReceiptWithName { number, name })
        }

        #[tool]
        fn plain_receipt(&self) -> Json<ReceiptWithName> {
            self.receipt_unprotected()
        }
    }
}

async fn keyless(client: &Client, tool: &'static str) -> Value {
    call(client, params(tool, Value::Null, Value::Null)).await
}

#[tokio::test]
async fn a_retry_finds_the_record_of_a_tool_that_was_renamed() {
    let shop = Shop::new(false, RefusalForm::default());
    let old = before::Server { shop: shop.clone() };
    let old = connect(old.idempotent(shop.layer(lease()))).await;
    let new = after::Server { shop: shop.clone() };
    let layer = IdempotencyLayer::builder(shop.idempotency.clone(), lease())
        .with_tool("pay_invoice", lease().with_also_known_as("pay"))
        .build()
        .unwrap();
    let new = connect(new.idempotent(layer)).await;
    let runs = || shop.runs.load(Ordering::SeqCst);

    for (old_name, new_name) in [("charge", "charge_card"), ("pay", "pay_invoice")] {
        let key = json!({ "idempotency-key": old_name });
        for meta in [key, Value::Null] {
            let before = runs();
            // In both directions, because both versions serve while one replaces the other.
            for (client, name) in [(&old, old_name), (&new, new_name), (&old, old_name)] {
                let answer = call(client, params(name, Value::Null, meta.clone())).await;
                let number = (before + 1).to_string();
                assert_eq!(answer["result"]["content"][0]["text"], number, "{answer}");
            }
            assert_eq!(runs(), before + 1);
        }
    }

    let asked = json!({ "key": "charge", "tool": "charge_card" });
    let request = CustomRequest::new("io.github.mcp-idempotent/status", Some(asked));
    let state = new
        .send_request(ClientRequest::CustomRequest(request))
        .await;
    let Ok(ServerResult::CustomResult(state)) = state else {
        panic!("no state: {state:?}")
    };
    assert!(state.0["result"].is_object(), "{state:?}");
}

#[test]
fn the_earlier_name_of_a_tool_is_not_set_for_a_server() {
    let mut policy = mcp_idempotent_tower::Policy::default();
    policy.also_known_as = Some("charge".into());
    let builder = Idempotency::builder("shop", MemoryStore::new()).with_one_caller();
    let refused = builder.with_policy(policy).build().unwrap_err();
    assert!(refused.to_string().contains("also_known_as"), "{refused}");
}

#[test]
fn two_tools_are_not_recorded_under_one_name() {
    let shop = Shop::new(false, RefusalForm::default());
    let builder = || IdempotencyLayer::builder(shop.idempotency.clone(), lease());
    let known = || lease().with_also_known_as("pay");
    for refused in [
        builder()
            .with_tool("a", known())
            .with_tool("b", known())
            .build(),
        builder()
            .with_tool("pay", lease())
            .with_tool("b", known())
            .build(),
        builder().with_tools(|_| true, known()).build(),
        IdempotencyLayer::new(shop.idempotency.clone(), known()),
    ] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("name"), "{refused}");
    }
    let new = after::Server { shop: shop.clone() };
    let charge_card = new.get_tool("charge_card").unwrap();
    let old = before::Server { shop: shop.clone() };
    let charge = old.get_tool("charge").unwrap();
    assert!(shop.idempotency.check_tools([&charge_card]).is_ok());
    let refused = shop
        .idempotency
        .check_tools([&charge_card, &charge])
        .unwrap_err();
    assert!(refused.to_string().contains("`charge`"), "{refused}");
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Charge {
    cents: u32,
    trace_id: String,
}

/// A version that ignores an argument in place, and one that does so in a tool of another name.
mod ignoring {
    use super::*;

    macro_rules! server {
        ($name:ident { $($options:tt)* }) => {
            #[derive(Clone)]
            pub(super) struct $name {
                pub(super) shop: Shop,
            }

            #[tool_router(server_handler)]
            impl $name {
                #[idempotent(
                    on_error = in_doubt, $($options)* idempotency = self.shop.idempotency
                )]
                #[tool]
                fn charge(&self, Parameters(charge): Parameters<Charge>) -> String {
                    self.shop.charge(&charge)
                }
            }
        };
    }

    server! { Before {} }
    server! { InPlace { ignore("trace_id"), } }

    #[derive(Clone)]
    pub(super) struct Beside {
        pub(super) shop: Shop,
    }

    #[tool_router(server_handler)]
    impl Beside {
        /// Replaced by `charge_card`.
        #[idempotent(on_error = in_doubt, idempotency = self.shop.idempotency)]
        #[tool]
        fn charge(&self, Parameters(charge): Parameters<Charge>) -> String {
            self.shop.charge(&charge)
        }

        #[idempotent(
            on_error = in_doubt, ignore("trace_id"), idempotency = self.shop.idempotency
        )]
        #[tool]
        fn charge_card(&self, Parameters(charge): Parameters<Charge>) -> String {
            self.shop.charge(&charge)
        }
    }
}

/// The text of the result, or the type of the refusal.
async fn charged(client: &Client, tool: &'static str, key: Option<&str>, trace: &str) -> String {
    let arguments = json!({ "cents": 100, "trace_id": trace });
    let meta = key.map_or(Value::Null, |key| json!({ "idempotency-key": key }));
    let answer = call(client, params(tool, arguments, meta)).await;
    let text = &answer["result"]["content"][0]["text"];
    let refusal = &answer["error"]["data"]["type"];
    let told = text.as_str().or_else(|| refusal.as_str());
    told.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn an_argument_that_is_ignored_in_place_makes_a_retry_a_conflict_and_beside_it_does_not() {
    const CONFLICT: &str = "idempotency_key_conflict";
    let shop = Shop::new(false, RefusalForm::default());
    let old = connect(ignoring::Before { shop: shop.clone() }).await;
    let in_place = connect(ignoring::InPlace { shop: shop.clone() }).await;
    let new = connect(ignoring::Beside { shop: shop.clone() }).await;
    let runs = || shop.runs.load(Ordering::SeqCst);
    assert_eq!(charged(&old, "charge", Some("k"), "t").await, "1");
    assert_eq!(charged(&in_place, "charge", Some("k"), "t").await, CONFLICT);
    // Both versions serve: a retry is a replay at each, whichever ran the call.
    assert_eq!(charged(&new, "charge", Some("k"), "t").await, "1");
    assert_eq!(charged(&new, "charge", Some("new"), "t").await, "2");
    assert_eq!(charged(&old, "charge", Some("new"), "t").await, "2");
    assert_eq!(charged(&old, "charge", None, "u").await, "3");
    assert_eq!(charged(&new, "charge", None, "u").await, "3");
    // The tool beside it is another tool, in which the argument does not count.
    assert_eq!(charged(&new, "charge_card", Some("k"), "t").await, CONFLICT);
    assert_eq!(charged(&new, "charge_card", Some("card"), "t").await, "4");
    assert_eq!(charged(&new, "charge_card", Some("card"), "u").await, "4");
    assert_eq!(runs(), 4);
}

/// Both tools of a version, after the older version has run them.
async fn upgraded(checked: bool, form: RefusalForm) -> (Shop, Client) {
    let shop = Shop::new(checked, form);
    let old = before::Server { shop: shop.clone() };
    let old = connect(old.idempotent(shop.layer(lease()))).await;
    for tool in ["receipt", "plain_receipt"] {
        keyless(&old, tool).await;
        let again = keyless(&old, tool).await;
        assert!(again["result"]["_meta"][REPLAYED].is_object(), "{again}");
    }
    let new = after::Server { shop: shop.clone() };
    let new = connect(new.idempotent(shop.layer(lease()))).await;
    (shop, new)
}

#[tokio::test]
async fn a_result_of_an_older_output_schema_is_told_and_not_replayed() {
    let (shop, client) = upgraded(true, RefusalForm::Error).await;
    for (tool, number) in [("receipt", 1), ("plain_receipt", 2)] {
        let answer = keyless(&client, tool).await;
        let data = &answer["error"]["data"];
        assert_eq!(data["type"], "idempotency_outcome_unknown", "{answer}");
        assert_eq!(data["outcome"], "committed", "{answer}");
        let recorded = &data["result"]["structuredContent"];
        assert_eq!(*recorded, json!({ "number": number }), "{answer}");
    }
    assert_eq!(shop.runs.load(Ordering::SeqCst), 2);
    let fresh = keyed(&client, "receipt", Value::Null).await;
    assert_eq!(fresh["result"]["structuredContent"]["name"], "new");

    let (_, client) = upgraded(true, RefusalForm::default()).await;
    let answer = keyless(&client, "receipt").await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    let data = &answer["result"]["_meta"][REFUSAL];
    assert_eq!(data["result"]["structuredContent"]["number"], 1, "{answer}");
    // A model sees neither `_meta` nor an error's data.
    let content = &answer["result"]["content"];
    assert_eq!(content[1]["text"], r#"{"number":1}"#, "{answer}");
}

#[tokio::test]
async fn a_result_is_replayed_as_it_is_where_schemas_are_not_checked() {
    let (shop, client) = upgraded(false, RefusalForm::default()).await;
    for tool in ["receipt", "plain_receipt"] {
        let answer = keyless(&client, tool).await;
        assert!(answer["result"]["_meta"][REPLAYED].is_object(), "{answer}");
    }
    assert_eq!(shop.runs.load(Ordering::SeqCst), 2);
}
