//! The server, whatever keeps its charges.
//!
//! It is an ordinary one but for its type parameter: `#[tool_router(server_handler)]` does not
//! compile on a generic `impl`, so the tools are put together in [`Payments::new`], which also saves
//! putting them together anew for every call.

use std::time::Duration;

use mcp_idempotent_tower::{
    Attempt, Idempotency, NotExecuted, Policy, Store, TransactionStore, idempotent,
};
use rmcp::{
    ErrorData, Json, ServerHandler,
    handler::server::{tool::ToolRouter, wrapper::Parameters},
    tool, tool_handler, tool_router,
};

use super::{
    charge::{Charge, Listing, Receipt, Receipts, whose_key},
    ledger::Ledger,
    outside::{Invoice, Message, Outside, Payment, Sent},
};

/// Where charges and payments are kept, next to the records of calls.
pub(super) trait Books: Clone + Send + Sync + 'static {
    /// Where the records are kept.
    type Store: Store;

    /// The tool `charge_card`: with transactions it is [`Payments::in_transaction`]. With it comes what
    /// needs transactions.
    fn charge_card() -> ToolRouter<Payments<Self>>;

    /// Writes a charge by itself.
    fn charge(&self, charge: &Charge) -> impl Future<Output = Result<Receipt, ErrorData>> + Send;

    /// Writes a payment, together with the record of its call where there are transactions.
    fn book(
        &self,
        attempt: &Attempt,
        payment: &Payment,
    ) -> impl Future<Output = Result<(), ErrorData>> + Send;

    /// Reads charges.
    fn list(&self, listing: Listing) -> impl Future<Output = Result<Receipts, ErrorData>> + Send;
}

/// Books that are written through the transaction of a call.
pub(super) trait TransactionBooks: Books<Store: TransactionStore> {
    /// Writes a charge.
    fn charge_in(
        connection: &mut <Self::Store as TransactionStore>::Connection,
        charge: &Charge,
    ) -> impl Future<Output = Result<Receipt, ErrorData>> + Send;
}

/// The server.
pub(super) struct Payments<B: Books> {
    pub(super) idempotency: Idempotency<B::Store>,
    pub(super) books: B,
    pub(super) ledger: Ledger,
    pub(super) outside: Outside,
    tools: ToolRouter<Self>,
}

// Not derived: that would ask for a store that can be cloned.
impl<B: Books> Clone for Payments<B> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            books: self.books.clone(),
            ledger: self.ledger.clone(),
            outside: self.outside.clone(),
            tools: self.tools.clone(),
        }
    }
}

impl<B: Books> Payments<B> {
    /// A server that keeps its charges in `books`, and its records in `store`.
    pub(super) fn new(
        books: B,
        store: B::Store,
        lease: Duration,
        ledger: Ledger,
        outside: Outside,
    ) -> anyhow::Result<Self> {
        let mut policy = Policy::default();
        policy.lease = lease;
        Ok(Self {
            idempotency: Idempotency::builder("payments", store)
                .with_policy(policy)
                .with_scope_from(whose_key)
                // Hosts do not show `_meta` to the model.
                .with_announced_replays(true)
                .build()?,
            books,
            ledger,
            outside,
            tools: Self::on_any_store() + Self::agreed() + B::charge_card(),
        })
    }
}

#[tool_handler(router = self.tools)]
impl<B: Books> ServerHandler for Payments<B> {}

#[tool_router(router = in_transaction, vis = "pub(super)")]
impl<B: TransactionBooks> Payments<B> {
    /// Charge a card, once per idempotency key.
    // The argument is for models, and for libraries that cannot set `_meta`.
    #[idempotent(key_argument = "idempotency_key")]
    #[tool]
    async fn charge_card(
        &self,
        tx: &mut <B::Store as TransactionStore>::Connection,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        charge.check()?;
        let receipt = B::charge_in(tx, &charge).await?;
        self.ledger.executed("charge_card", &charge).await?;
        Ok(Json(receipt))
    }
}

#[tool_router(router = on_any_store)]
impl<B: Books> Payments<B> {
    /// Charge a card, as servers do without protection: each call is a charge.
    #[tool(name = "charge_card_unprotected")]
    async fn charge_without_protection(
        &self,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        charge.check()?;
        let receipt = self.books.charge(&charge).await?;
        self.ledger
            .executed("charge_card_unprotected", &charge)
            .await?;
        Ok(Json(receipt))
    }

    /// Send a customer a receipt, at most once.
    // Whether the other side recognises a repeat is not known, and nobody can call a message back.
    // So an error does not free the key, and what may have been sent is not sent again: a retry is
    // refused until an operator has looked.
    #[idempotent(on_error = in_doubt, on_doubt = fail, key_argument = "idempotency_key")]
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
    // The payment API recognises a key that it has seen, so a repeat is safe: a retry of what is in
    // doubt runs again, is answered by the API with the first payment, and writes the row that the
    // attempt before may have missed.
    #[idempotent(on_error = in_doubt, on_doubt = rerun, key_argument = "idempotency_key")]
    #[tool]
    async fn pay_invoice(
        &self,
        attempt: Attempt,
        Parameters(invoice): Parameters<Invoice>,
    ) -> Result<Json<Payment>, ErrorData> {
        invoice.check().map_err(NotExecuted::mark)?;
        let payment = self.outside.pay(&attempt, &invoice).await?;
        // Not before: nothing of the database is held while the other side takes its time. The row
        // commits together with the record, or not at all.
        self.books.book(&attempt, &payment).await?;
        Ok(Json(payment))
    }

    /// Pay an invoice, as servers do without protection: each call is a payment, and its row is not even
    /// kept.
    #[tool(name = "pay_invoice_unprotected")]
    async fn pay_without_protection(
        &self,
        Parameters(invoice): Parameters<Invoice>,
    ) -> Result<Json<Payment>, ErrorData> {
        invoice.check()?;
        Ok(Json(self.outside.pay_without_key(&invoice).await?))
    }

    /// List charges.
    #[tool(annotations(read_only_hint = true))]
    async fn list_charges(
        &self,
        Parameters(listing): Parameters<Listing>,
    ) -> Result<Json<Receipts>, ErrorData> {
        Ok(Json(self.books.list(listing).await?))
    }
}
