//! Servers that are generic over their store, in both modes.

use std::marker::PhantomData;

use mcp_idempotent_tower::{
    Idempotency, MemoryStore, Store, TransactionStore, idempotent, store::sqlite::SqliteStore,
};
use rmcp::{
    Json, ServerHandler, handler::server::wrapper::Parameters, tool, tool_handler, tool_router,
};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::client::{call, connect, params};

#[derive(Debug, serde::Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Charge {
    amount: i64,
}

struct Ledger<S> {
    idempotency: Idempotency<S>,
}

impl<S> Clone for Ledger<S> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
        }
    }
}

#[tool_router(router = transactions)]
impl<S: TransactionStore> Ledger<S> {
    /// Takes whatever connection the store has.
    #[idempotent]
    #[tool]
    async fn book(
        &self,
        _connection: &mut S::Connection,
        Parameters(charge): Parameters<Charge>,
    ) -> Json<i64> {
        Json(charge.amount)
    }
}

#[tool_router(router = leases)]
impl<S: Store> Ledger<S> {
    /// Takes none.
    #[idempotent(on_error = in_doubt)]
    #[tool]
    fn announce(&self, Parameters(charge): Parameters<Charge>) -> Result<String, String> {
        Ok(charge.amount.to_string())
    }
}

/// Generic over what it takes and gives.
struct Keeper<T> {
    idempotency: Idempotency<MemoryStore>,
    kept: PhantomData<fn() -> T>,
}

impl<T> Clone for Keeper<T> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            kept: PhantomData,
        }
    }
}

#[tool_router]
impl<T> Keeper<T>
where
    T: DeserializeOwned + Serialize + JsonSchema + Send + 'static,
{
    #[idempotent(on_error = in_doubt, key_argument = "key")]
    #[tool]
    async fn keep(&self, Parameters(kept): Parameters<T>) -> Json<T> {
        Json(kept)
    }
}

#[tool_handler]
impl ServerHandler for Keeper<Charge> {}

#[test]
fn a_generic_server_has_tools_of_both_modes() {
    assert_eq!(Ledger::<MemoryStore>::leases().list_all().len(), 1);
    let both = Ledger::<SqliteStore>::leases() + Ledger::<SqliteStore>::transactions();
    assert_eq!(both.list_all().len(), 2);
}

#[tokio::test]
async fn a_server_may_be_generic_over_what_a_tool_takes() {
    let client = connect(Keeper::<Charge> {
        idempotency: Idempotency::for_stdio("keeper", MemoryStore::new()).unwrap(),
        kept: PhantomData,
    })
    .await;
    let arguments = json!({ "amount": 7, "key": "k" });
    let answer = call(&client, params("keep", arguments, Value::Null)).await;
    let expected = json!({ "amount": 7 });
    assert_eq!(answer["result"]["structuredContent"], expected, "{answer}");
}
