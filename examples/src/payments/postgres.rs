//! Payments on Postgres.

use anyhow::Context as _;
use mcp_idempotent_tower::{Attempt, store::postgres::PostgresStore};
use rmcp::{ErrorData, handler::server::tool::ToolRouter};
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{
    charge::{self, Charge, Listing, Receipt, Receipts, failed},
    outside::{self, Payment},
    server::{Books, Payments, TransactionBooks},
};

const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS charges (
        charge_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        customer text NOT NULL,
        amount_cents bigint NOT NULL
    )",
    "CREATE TABLE IF NOT EXISTS payments (
        payment_id text NOT NULL,
        invoice text NOT NULL,
        amount_cents bigint NOT NULL
    )",
];

/// Two tables, in the schema that has the records.
#[derive(Clone)]
pub(super) struct PostgresBooks(PgPool);

/// Connects, and makes the schema and the tables where they are not there.
pub(super) async fn open(
    url: &str,
    schema: &str,
) -> anyhow::Result<(PostgresBooks, PostgresStore)> {
    let pool = connect(url, schema).await?;
    make_tables(&pool, schema)
        .await
        .context("cannot make the tables of charges and payments")?;
    let store = PostgresStore::builder(pool.clone())
        .with_schema(schema)
        .build()?;
    store
        .migrate()
        .await
        .context("cannot make the table of idempotency records")?;
    Ok((PostgresBooks(pool), store))
}

/// Connects, with the tables of `schema` in sight.
///
/// # Errors
///
/// The URL is not one, or the database cannot be reached.
pub async fn connect(url: &str, schema: &str) -> anyhow::Result<PgPool> {
    let options: PgConnectOptions = url.parse().context("the Postgres URL is wrong")?;
    let place = format!("{}:{}", options.get_host(), options.get_port());
    let options = options.options([("search_path", schema)]);
    // A pool tries until it runs out of time; one try says at once what is wrong.
    PgConnection::connect_with(&options)
        .await
        .with_context(|| format!("cannot connect to Postgres at {place}"))?
        .close()
        .await?;
    Ok(PgPoolOptions::new()
        .max_connections(8)
        .connect_lazy_with(options))
}

async fn make_tables(pool: &PgPool, schema: &str) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin().await?;
    // IF NOT EXISTS is no protection against several servers that start at once.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('mcp-idempotent example payments'))")
        .execute(&mut *tx)
        .await?;
    // The name was checked to be a plain one.
    let create = AssertSqlSafe(format!("CREATE SCHEMA IF NOT EXISTS {schema}"));
    sqlx::query(create).execute(&mut *tx).await?;
    for table in TABLES {
        sqlx::query(table).execute(&mut *tx).await?;
    }
    tx.commit().await
}

impl Books for PostgresBooks {
    type Store = PostgresStore;

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
        let mut tx = attempt.begin::<PostgresStore>().await?;
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

impl TransactionBooks for PostgresBooks {
    async fn charge_in(tx: &mut PgConnection, charge: &Charge) -> Result<Receipt, ErrorData> {
        let id = sqlx::query_scalar(charge::INSERT)
            .bind(&charge.customer)
            .bind(charge.amount_cents)
            .fetch_one(tx)
            .await
            .map_err(failed)?;
        Ok(Receipt::new(id, charge))
    }
}
