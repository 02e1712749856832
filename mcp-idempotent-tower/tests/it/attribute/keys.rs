//! Where the key comes from, and what it decides.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent};
use rmcp::{ErrorData, Json, handler::server::wrapper::Parameters, tool, tool_router};
use serde_json::{Value, json};

use crate::client::{call, connect, params};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Charge {
    amount: i64,
}

#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
struct Receipt {
    amount: i64,
    number: u32,
}

#[derive(Clone)]
struct Billing {
    idempotency: Idempotency<MemoryStore>,
    charges: Arc<AtomicU32>,
}

#[tool_router(server_handler)]
impl Billing {
    fn new() -> Self {
        Self {
            idempotency: Idempotency::new("billing", MemoryStore::new()),
            charges: Arc::default(),
        }
    }

    /// Charges a card.
    #[idempotent(on_error = release)]
    #[tool]
    async fn charge(
        &self,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        let number = self.charges.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(Json(Receipt {
            amount: charge.amount,
            number,
        }))
    }
}

#[tokio::test]
async fn five_identical_calls_execute_once() {
    let billing = Billing::new();
    let client = connect(billing.clone()).await;
    for _ in 0..5 {
        let answer = call(
            &client,
            params("charge", json!({ "amount": 7 }), Value::Null),
        )
        .await;
        assert_eq!(
            answer["result"]["structuredContent"]["number"], 1,
            "{answer}"
        );
    }
    assert_eq!(billing.charges.load(Ordering::SeqCst), 1);
}
