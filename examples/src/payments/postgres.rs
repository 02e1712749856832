//! Payments on Postgres.

use std::time::Duration;

use anyhow::Context as _;
use mcp_idempotent_tower::{
    Attempt, Idempotency, NotExecuted, idempotent, store::postgres::PostgresStore,
};
use rmcp::{ErrorData, Json, handler::server::wrapper::Parameters, tool, tool_router};
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{
    charge::{self, Charge, Listing, Receipt, Receipts, failed, whose_key},
    ledger::Ledger,
    outside::{self, Invoice, Message, Outside, Payment, Sent},
};

/// The server.
#[derive(Debug, Clone)]
pub struct Payments {
    idempotency: Idempotency<PostgresStore>,
    pool: PgPool,
    ledger: Ledger,
    outside: Outside,
}

impl Payments {
    /// Makes the schema and the tables where they are not there.
    ///
    /// # Errors
    ///
    /// The database does not let us make tables.
    pub async fn open(
        pool: PgPool,
        schema: &str,
        lease: Duration,
        ledger: Ledger,
        outside: Outside,
    ) -> anyhow::Result<Self> {
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
    sqlx::query(AssertSqlSafe(format!(
        "CREATE SCHEMA IF NOT EXISTS {schema}"
    )))
    .execute(&mut *tx)
    .await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS charges (
            charge_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            customer text NOT NULL,
            amount_cents bigint NOT NULL
        )",
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS payments (
            payment_id text NOT NULL,
            invoice text NOT NULL,
            amount_cents bigint NOT NULL
        )",
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await
}

#[tool_router(server_handler)]
impl Payments {
    /// Charge a card, once per idempotency key.
    #[idempotent]
    #[tool]
    async fn charge_card(
        &self,
        tx: &mut PgConnection,
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
        let mut tx = attempt.begin::<PostgresStore>().await?;
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

async fn insert(tx: &mut PgConnection, charge: &Charge) -> Result<i64, ErrorData> {
    sqlx::query_scalar(charge::INSERT)
        .bind(&charge.customer)
        .bind(charge.amount_cents)
        .fetch_one(tx)
        .await
        .map_err(failed)
}

async fn insert_payment(tx: &mut PgConnection, payment: &Payment) -> Result<(), ErrorData> {
    sqlx::query(outside::INSERT)
        .bind(&payment.payment_id)
        .bind(&payment.invoice)
        .bind(payment.amount_cents)
        .execute(tx)
        .await
        .map_err(failed)?;
    Ok(())
}
