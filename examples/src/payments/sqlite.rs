//! Payments on a SQLite file.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use mcp_idempotent_tower::{
    Attempt, Idempotency, NotExecuted, idempotent,
    store::sqlite::{SqliteStore, SqliteStoreBuilder},
};
use rmcp::{ErrorData, Json, handler::server::wrapper::Parameters, tool, tool_router};
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    charge::{self, Charge, Listing, Receipt, Receipts, failed, whose_key},
    ledger::Ledger,
    outside::{self, Invoice, Message, Outside, Payment, Sent},
};

/// The server.
#[derive(Debug, Clone)]
pub struct Payments {
    idempotency: Idempotency<SqliteStore>,
    pool: SqlitePool,
    ledger: Ledger,
    outside: Outside,
}

impl Payments {
    /// Opens the file, made if it is not there, with the tables.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or written.
    pub async fn open(
        file: &Path,
        lease: Duration,
        ledger: Ledger,
        outside: Outside,
    ) -> anyhow::Result<Self> {
        let store = SqliteStore::open(file)
            .await
            .with_context(|| format!("cannot open {}", file.display()))?;
        let pool = store.pool().clone();
        // While a handler has the transaction no lease can be renewed: a short lease wants a
        // shorter limit.
        let limit = SqliteStoreBuilder::DEFAULT_TRANSACTION_LIMIT.min(lease / 4);
        let store = SqliteStore::builder(pool.clone())
            .with_transaction_limit(limit)
            .build()?;
        for table in [
            "CREATE TABLE IF NOT EXISTS charges (
                charge_id INTEGER PRIMARY KEY,
                customer TEXT NOT NULL,
                amount_cents INTEGER NOT NULL
            )",
            "CREATE TABLE IF NOT EXISTS payments (
                payment_id TEXT NOT NULL,
                invoice TEXT NOT NULL,
                amount_cents INTEGER NOT NULL
            )",
        ] {
            sqlx::query(table).execute(&pool).await?;
        }
        Ok(Self {
            idempotency: Idempotency::builder("payments", store)
                .with_policy(charge::policy(lease))
                .with_scope_from(whose_key)
                // Hosts do not show `_meta` to the model.
                .with_announced_replays(true)
                .build()?,
            pool,
            ledger,
            outside,
        })
    }
}

#[tool_router(server_handler)]
impl Payments {
    /// Charge a card, once per idempotency key.
    #[idempotent]
    #[tool]
    async fn charge_card(
        &self,
        tx: &mut SqliteConnection,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        charge.check()?;
        let charge_id = insert(tx, &charge).await?;
        self.ledger.executed("charge_card", &charge).await?;
        Ok(Json(Receipt::new(charge_id, &charge)))
    }

    /// Charge a card, as servers do without protection: each call is a charge.
    #[tool(name = "charge_card_unprotected")]
    async fn charge_without_protection(
        &self,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        charge.check()?;
        let mut tx = self.pool.begin().await.map_err(failed)?;
        let charge_id = insert(&mut tx, &charge).await?;
        tx.commit().await.map_err(failed)?;
        self.ledger
            .executed("charge_card_unprotected", &charge)
            .await?;
        Ok(Json(Receipt::new(charge_id, &charge)))
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
    // The payment API recognises a key that it has seen, so a repeat is safe: a retry of what is in
    // doubt runs again, is answered by the API with the first payment, and writes the row that the
    // attempt before may have missed.
    #[idempotent(on_error = in_doubt, on_doubt = rerun)]
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
        let mut tx = attempt.begin::<SqliteStore>().await?;
        insert_payment(&mut tx, &payment).await?;
        Ok(Json(payment))
    }

    /// List charges.
    #[tool(annotations(read_only_hint = true))]
    async fn list_charges(
        &self,
        Parameters(listing): Parameters<Listing>,
    ) -> Result<Json<Receipts>, ErrorData> {
        let rows: Vec<charge::Row> = sqlx::query_as(charge::SELECT)
            .bind(listing.customer)
            .fetch_all(&self.pool)
            .await
            .map_err(failed)?;
        Ok(Json(rows.into_iter().map(Receipt::from).collect()))
    }
}

async fn insert(tx: &mut SqliteConnection, charge: &Charge) -> Result<i64, ErrorData> {
    sqlx::query_scalar(charge::INSERT)
        .bind(&charge.customer)
        .bind(charge.amount_cents)
        .fetch_one(tx)
        .await
        .map_err(failed)
}

async fn insert_payment(tx: &mut SqliteConnection, payment: &Payment) -> Result<(), ErrorData> {
    sqlx::query(outside::INSERT)
        .bind(&payment.payment_id)
        .bind(&payment.invoice)
        .bind(payment.amount_cents)
        .execute(tx)
        .await
        .map_err(failed)?;
    Ok(())
}
