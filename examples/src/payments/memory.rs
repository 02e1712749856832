//! Payments in memory, in lease mode: there is no transaction to join.
//!
//! What this cannot promise: charges and records are gone when the process ends, and a crash
//! between a real charge at a payment provider and its record would leave the key in doubt, not
//! repeat it. It is the shape of a tool whose effect is outside the database.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mcp_idempotent_tower::{Attempt, MemoryStore, NotExecuted, idempotent};
use rmcp::{
    ErrorData, Json,
    handler::server::{tool::ToolRouter, wrapper::Parameters},
    tool, tool_router,
};

use super::{
    charge::{Charge, Listing, Receipt, Receipts},
    outside::Payment,
    server::{Books, Payments},
};

/// Charges, and no payments.
#[derive(Clone, Default)]
pub(super) struct MemoryBooks(Arc<Mutex<Vec<Receipt>>>);

impl MemoryBooks {
    fn lock(&self) -> MutexGuard<'_, Vec<Receipt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books for MemoryBooks {
    type Store = MemoryStore;

    fn charge_card() -> ToolRouter<Payments<Self>> {
        Payments::under_lease()
    }

    async fn charge(&self, charge: &Charge) -> Result<Receipt, ErrorData> {
        let mut charges = self.lock();
        let id = i64::try_from(charges.len() + 1).unwrap_or(i64::MAX);
        let receipt = Receipt::new(id, charge);
        charges.push(receipt.clone());
        Ok(receipt)
    }

    async fn book(&self, _: &Attempt, _: &Payment) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn list(&self, listing: Listing) -> Result<Receipts, ErrorData> {
        let asked = |receipt: &&Receipt| {
            let customer = listing.customer.as_ref();
            customer.is_none_or(|customer| *customer == receipt.customer)
        };
        Ok(self
            .lock()
            .iter()
            .filter(asked)
            .take(1000)
            .cloned()
            .collect())
    }
}

#[tool_router(router = under_lease)]
impl Payments<MemoryBooks> {
    /// Charge a card, once per idempotency key.
    // An error after the charge does not prove that nothing happened, and nobody may repeat it.
    #[idempotent(on_error = in_doubt, key_argument = "idempotency_key")]
    #[tool]
    async fn charge_card(
        &self,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        // An error before the charge does prove it: the key stays free.
        charge.check().map_err(NotExecuted::mark)?;
        let receipt = self.books.charge(&charge).await?;
        self.ledger.executed("charge_card", &charge).await?;
        Ok(Json(receipt))
    }
}
