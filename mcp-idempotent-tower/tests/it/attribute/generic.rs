//! Servers that are generic over their store, in both modes.

use mcp_idempotent_tower::{
    Idempotency, MemoryStore, Store, TransactionStore, idempotent, store::sqlite::SqliteStore,
};
use rmcp::{Json, handler::server::wrapper::Parameters, tool, tool_router};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
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

#[test]
fn a_generic_server_has_tools_of_both_modes() {
    assert_eq!(Ledger::<MemoryStore>::leases().list_all().len(), 1);
    let both = Ledger::<SqliteStore>::leases() + Ledger::<SqliteStore>::transactions();
    assert_eq!(both.list_all().len(), 2);
}
