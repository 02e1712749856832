//! Payments on a SQLite file.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use mcp_idempotent_tower::{
    Attempt,
    store::sqlite::{SqliteStore, SqliteStoreBuilder},
};
use rmcp::{ErrorData, handler::server::tool::ToolRouter};
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    charge::{self, Charge, Listing, Receipt, Receipts, failed},
    outside::{self, Payment},
    server::{Books, Payments, TransactionBooks},
};

const TABLES: [&str; 2] = [
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
];

/// Two tables, in the file that has the records.
#[derive(Clone)]
pub(super) struct SqliteBooks(SqlitePool);

/// Opens the file, made if it is not there, with the tables.
pub(super) async fn open(
    file: &Path,
    lease: Duration,
) -> anyhow::Result<(SqliteBooks, SqliteStore)> {
    let store = SqliteStore::open(file)
        .await
        .with_context(|| format!("cannot open {}", file.display()))?;
    let pool = store.pool().clone();
    // While a handler has the transaction no lease can be renewed: a short lease wants a shorter
    // limit.
    let limit = SqliteStoreBuilder::DEFAULT_TRANSACTION_LIMIT.min(lease / 4);
    let store = SqliteStore::builder(pool.clone())
        .with_transaction_limit(limit)
        .build()?;
    for table in TABLES {
        sqlx::query(table).execute(&pool).await?;
    }
    Ok((SqliteBooks(pool), store))
}

impl Books for SqliteBooks {
    type Store = SqliteStore;

    fn charge_card() -> ToolRouter<Payments<Self>> {
        Payments::in_transaction() + Payments::agreed_in_transaction()
    }

    async fn charge(&self, charge: &Charge) -> Result<Receipt, ErrorData> {
        let mut tx = self.0.begin().await.map_err(failed)?;
        let receipt = Self::charge_in(&mut tx, charge).await?;
        tx.commit().await.map_err(failed)?;
        Ok(receipt)
    }

    async fn book(&self, attempt: &Attempt, payment: &Payment) -> Result<(), ErrorData> {
        let mut tx = attempt.begin::<SqliteStore>().await?;
        sqlx::query(outside::INSERT)
            .bind(&payment.payment_id)
            .bind(&payment.invoice)
            .bind(payment.amount_cents)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        Ok(())
    }

    async fn list(&self, listing: Listing) -> Result<Receipts, ErrorData> {
        let rows: Vec<charge::Row> = sqlx::query_as(charge::SELECT)
            .bind(listing.customer)
            .fetch_all(&self.0)
            .await
            .map_err(failed)?;
        Ok(rows.into_iter().map(Receipt::from).collect())
    }
}

impl TransactionBooks for SqliteBooks {
    async fn charge_in(tx: &mut SqliteConnection, charge: &Charge) -> Result<Receipt, ErrorData> {
        let id = sqlx::query_scalar(charge::INSERT)
            .bind(&charge.customer)
            .bind(charge.amount_cents)
            .fetch_one(tx)
            .await
            .map_err(failed)?;
        Ok(Receipt::new(id, charge))
    }
}
