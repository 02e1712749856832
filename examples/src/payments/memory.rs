//! Payments in memory, in lease mode: there is no transaction to join.
//!
//! What this cannot promise: charges and records are gone when the process ends, and a crash
//! between a real charge at a payment provider and its record would leave the key in doubt, not
//! repeat it. It is the shape of a tool whose effect is outside the database.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mcp_idempotent_tower::{Attempt, Idempotency, MemoryStore, NotExecuted, idempotent};
use rmcp::{ErrorData, Json, handler::server::wrapper::Parameters, tool, tool_router};

use super::{
    charge::{self, Charge, Listing, Receipt, Receipts, whose_key},
    ledger::Ledger,
    outside::{Invoice, Message, Outside, Payment, Sent},
};

/// The server.
#[derive(Debug, Clone)]
pub struct Payments {
    idempotency: Idempotency<MemoryStore>,
    charges: Arc<Mutex<Vec<Receipt>>>,
    ledger: Ledger,
    outside: Outside,
}

impl Payments {
    /// A server without charges.
    ///
    /// # Errors
    ///
    /// The settings contradict each other.
    pub fn new(lease: Duration, ledger: Ledger, outside: Outside) -> anyhow::Result<Self> {
        Ok(Self {
            idempotency: Idempotency::builder("payments", MemoryStore::new())
                .with_policy(charge::policy(lease))
                .with_scope_from(whose_key)
                // Hosts do not show `_meta` to the model.
                .with_announced_replays(true)
                .build()?,
            charges: Arc::default(),
            ledger,
            outside,
        })
    }

    fn push(&self, charge: &Charge) -> Receipt {
        let mut charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        let id = i64::try_from(charges.len() + 1).unwrap_or(i64::MAX);
        let receipt = Receipt::new(id, charge);
        charges.push(receipt.clone());
        receipt
    }
}

#[tool_router(server_handler)]
impl Payments {
    /// Charge a card, once per idempotency key.
    // An error after the charge does not prove that nothing happened, and nobody may repeat it.
    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn charge_card(
        &self,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        // An error before the charge does prove it: the key stays free.
        charge.check().map_err(NotExecuted::mark)?;
        let receipt = self.push(&charge);
        self.ledger.executed("charge_card", &charge).await?;
        Ok(Json(receipt))
    }

    /// Charge a card, as servers do without protection: each call is a charge.
    #[tool(name = "charge_card_unprotected")]
    async fn charge_without_protection(
        &self,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        charge.check()?;
        let receipt = self.push(&charge);
        self.ledger
            .executed("charge_card_unprotected", &charge)
            .await?;
        Ok(Json(receipt))
    }

    /// Send a customer a receipt, at most once.
    // Whether the other side recognises a repeat is not known, and nobody can call a message back.
    // So an error does not free the key, and what may have been sent is not sent again: a retry is
    // refused until an operator has looked.
    #[idempotent(on_error = in_doubt, on_doubt = fail)]
    #[tool]
    async fn send_receipt(
        &self,
        attempt: Attempt,
        Parameters(message): Parameters<Message>,
    ) -> Result<Json<Sent>, ErrorData> {
        // Nothing has been sent yet, so this error frees the key.
        message.check().map_err(NotExecuted::mark)?;
        Ok(Json(self.outside.send_receipt(&attempt, &message).await?))
    }

    /// Pay an invoice, once.
    // The payment API recognises a key that it has seen, so a repeat is safe. Here there is no
    // transaction, so there is no row of our own that commits together with the record.
    #[idempotent(on_error = in_doubt, on_doubt = rerun)]
    #[tool]
    async fn pay_invoice(
        &self,
        attempt: Attempt,
        Parameters(invoice): Parameters<Invoice>,
    ) -> Result<Json<Payment>, ErrorData> {
        invoice.check().map_err(NotExecuted::mark)?;
        Ok(Json(self.outside.pay(&attempt, &invoice).await?))
    }

    /// List charges.
    #[tool(annotations(read_only_hint = true))]
    async fn list_charges(&self, Parameters(listing): Parameters<Listing>) -> Json<Receipts> {
        let charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = |receipt: &&Receipt| {
            listing
                .customer
                .as_ref()
                .is_none_or(|customer| *customer == receipt.customer)
        };
        Json(charges.iter().filter(asked).take(1000).cloned().collect())
    }
}
