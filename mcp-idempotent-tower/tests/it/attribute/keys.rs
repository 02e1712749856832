//! Where the key comes from, and what it decides.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent};
use rmcp::{ErrorData, Json, handler::server::wrapper::Parameters, tool, tool_router};
use serde_json::{Value, json};

use crate::client::{Client, call, connect, params};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Charge {
    amount: i64,
    #[serde(default)]
    request: Option<Request>,
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Request {
    #[serde(rename = "id")]
    _id: Option<String>,
    #[serde(rename = "sent")]
    _sent: Option<String>,
}

#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
struct Receipt {
    amount: i64,
    number: u32,
}

#[derive(Clone)]
struct Billing {
    inner: Inner,
}

#[derive(Clone)]
struct Inner {
    records: Arc<Idempotency<MemoryStore>>,
    charges: Arc<AtomicU32>,
}

#[tool_router(server_handler)]
impl Billing {
    fn new() -> Self {
        Self {
            inner: Inner {
                records: Arc::new(Idempotency::for_stdio("billing", MemoryStore::new()).unwrap()),
                charges: Arc::default(),
            },
        }
    }

    /// Charges a card.
    #[idempotent(
        on_error = release,
        key_argument = "/request/id",
        ignore("/request/sent"),
        idempotency = self.inner.records
    )]
    #[tool]
    async fn charge(
        &self,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        let _ = charge.request;
        let number = self.inner.charges.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(Json(Receipt {
            amount: charge.amount,
            number,
        }))
    }

    #[idempotent(on_error = release, key = explicit, idempotency = self.inner.records)]
    #[tool]
    async fn explicit(&self) -> String {
        self.inner
            .charges
            .fetch_add(1, Ordering::SeqCst)
            .to_string()
    }
}

/// The number of the charge that answers a call.
async fn number(client: &Client, arguments: Value, meta: Value) -> Value {
    let answer = call(client, params("charge", arguments, meta)).await;
    answer["result"]["structuredContent"]["number"].clone()
}

#[tokio::test]
async fn five_identical_calls_execute_once() {
    let billing = Billing::new();
    let client = connect(billing.clone()).await;
    for _ in 0..5 {
        assert_eq!(
            number(&client, json!({ "amount": 7 }), Value::Null).await,
            1
        );
    }
    assert_eq!(
        number(&client, json!({ "amount": 8 }), Value::Null).await,
        2
    );
    assert_eq!(billing.inner.charges.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn one_key_is_one_key_wherever_it_stands() {
    let client = connect(Billing::new()).await;
    let alias = "io.github.mcp-idempotent/idempotency-key";
    let plain = json!({ "amount": 7, "request": {} });
    let with_argument = json!({ "amount": 7, "request": { "id": "k" } });
    let first = number(&client, plain.clone(), json!({ "idempotency-key": "k" })).await;
    assert_eq!(first, 1);
    for (arguments, meta) in [
        (plain.clone(), json!({ "idempotency-key": "k" })),
        (plain.clone(), json!({ alias: "k" })),
        (plain.clone(), json!({ alias: "k", "idempotency-key": "k" })),
    ] {
        assert_eq!(number(&client, arguments, meta).await, 1);
    }
    for meta in [Value::Null, json!({ alias: "k" })] {
        let answer = number(&client, with_argument.clone(), meta).await;
        assert_eq!(answer, 1);
    }
    assert_eq!(
        number(&client, plain, json!({ "idempotency-key": "l" })).await,
        2
    );
}

#[tokio::test]
async fn an_ignored_argument_takes_no_part_in_identity() {
    let client = connect(Billing::new()).await;
    for sent in ["now", "later"] {
        let arguments = json!({ "amount": 7, "request": { "sent": sent } });
        assert_eq!(number(&client, arguments, Value::Null).await, 1);
    }
}

#[tokio::test]
async fn a_key_argument_that_is_null_is_no_key() {
    let client = connect(Billing::new()).await;
    for expected in [1, 2] {
        let arguments = json!({ "amount": expected, "request": { "id": null } });
        assert_eq!(number(&client, arguments, Value::Null).await, expected);
    }
}

#[tokio::test]
async fn without_a_key_an_explicit_tool_is_not_deduplicated() {
    let client = connect(Billing::new()).await;
    for (expected, meta) in [
        ("0", Value::Null),
        ("1", Value::Null),
        ("2", json!({ "idempotency-key": "k" })),
        ("2", json!({ "idempotency-key": "k" })),
    ] {
        let answer = call(&client, params("explicit", Value::Null, meta)).await;
        assert_eq!(answer["result"]["content"][0]["text"], expected);
    }
}
