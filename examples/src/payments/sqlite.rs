//! Payments on a SQLite file.

use std::path::Path;

use anyhow::Context as _;
use mcp_idempotent_tower::{Idempotency, idempotent, store::sqlite::SqliteStore};
use rmcp::{ErrorData, Json, handler::server::wrapper::Parameters, tool, tool_router};
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    charge::{self, Charge, Listing, Receipt, Receipts, failed, whose_key},
    ledger::Ledger,
};

/// The server.
#[derive(Debug, Clone)]
pub struct Payments {
    idempotency: Idempotency<SqliteStore>,
    pool: SqlitePool,
    ledger: Ledger,
}

impl Payments {
    /// Opens the file, made if it is not there, with the tables.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or written.
    pub async fn open(file: &Path, ledger: Ledger) -> anyhow::Result<Self> {
        let store = SqliteStore::open(file)
            .await
            .with_context(|| format!("cannot open {}", file.display()))?;
        let pool = store.pool().clone();
        sqlx::query(
            "CREATE TABLE IF NOT EXISTS charges (
                charge_id INTEGER PRIMARY KEY,
                customer TEXT NOT NULL,
                amount_cents INTEGER NOT NULL
            )",
        )
        .execute(&pool)
        .await?;
        Ok(Self {
            idempotency: Idempotency::builder("payments", store)
                .with_scope_from(whose_key)
                // Hosts do not show `_meta` to the model.
                .with_announced_replays(true)
                .build()?,
            pool,
            ledger,
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
