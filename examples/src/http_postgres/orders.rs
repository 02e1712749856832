//! An ordinary rmcp server. It knows of idempotency only that the transaction of `place_order` is
//! somebody else's.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context as _;
use http::request::Parts;
use mcp_idempotent_tower::{PostgresStore, Tx};
use rmcp::{
    ErrorData, Json,
    handler::server::{common::Extension, tool::ToolRouter, wrapper::Parameters},
    tool, tool_handler, tool_router,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, PgPool};

use super::sign_in::User;

/// What is wanted.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Wanted {
    /// What.
    pub item: String,
    /// How many.
    pub quantity: i32,
}

/// An order that was placed.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Order {
    /// The order's number.
    pub order_id: i64,
    /// Who placed it.
    pub placed_by: String,
    /// What.
    pub item: String,
    /// How many.
    pub quantity: i32,
}

type Row = (i64, String, String, i32);

impl From<Row> for Order {
    fn from((order_id, placed_by, item, quantity): Row) -> Self {
        Self {
            order_id,
            placed_by,
            item,
            quantity,
        }
    }
}

/// Orders, the oldest first.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Listed {
    /// At most a thousand of them.
    pub orders: Vec<Order>,
}

/// What a label is for.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Labelled {
    /// The order's number.
    pub order_id: i64,
}

/// A label that was printed.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Label {
    /// The order's number.
    pub order_id: i64,
    /// How many labels this printer had printed with it.
    pub printed: u64,
}

/// The server.
#[derive(Debug, Clone)]
pub struct Orders {
    pool: PgPool,
    /// In place of a printer.
    printed: Arc<AtomicU64>,
    /// Kept, because to build it for each call takes longer than most calls.
    tool_router: ToolRouter<Self>,
}

impl Orders {
    /// Makes the schema and the table of orders where they are not there.
    ///
    /// # Errors
    ///
    /// The database does not let us.
    pub async fn open(pool: PgPool, schema: &str) -> anyhow::Result<Self> {
        make_table(&pool, schema)
            .await
            .context("cannot make the table of orders")?;
        Ok(Self {
            pool,
            printed: Arc::default(),
            tool_router: Self::tool_router(),
        })
    }
}

#[tool_router]
impl Orders {
    /// Place an order.
    #[tool]
    async fn place_order(
        &self,
        mut tx: Tx<PostgresStore>,
        Extension(parts): Extension<Parts>,
        Parameters(wanted): Parameters<Wanted>,
    ) -> Result<Json<Order>, ErrorData> {
        if wanted.quantity <= 0 {
            return Err(ErrorData::invalid_params(
                "quantity must be more than 0; nothing was ordered",
                None,
            ));
        }
        let order: Row = sqlx::query_as(
            "INSERT INTO orders (placed_by, item, quantity) VALUES ($1, $2, $3) \
             RETURNING order_id, placed_by, item, quantity",
        )
        .bind(signed_in(&parts)?.name())
        .bind(wanted.item)
        .bind(wanted.quantity)
        .fetch_one(&mut *tx)
        .await
        .map_err(failed)?;
        Ok(Json(order.into()))
    }

    /// Print the label of an order.
    #[tool]
    async fn print_label(
        &self,
        Parameters(Labelled { order_id }): Parameters<Labelled>,
    ) -> Json<Label> {
        let printed = self.printed.fetch_add(1, Ordering::Relaxed) + 1;
        Json(Label { order_id, printed })
    }

    /// List one's own orders.
    #[tool(annotations(read_only_hint = true))]
    async fn list_orders(
        &self,
        Extension(parts): Extension<Parts>,
    ) -> Result<Json<Listed>, ErrorData> {
        let orders: Vec<Row> = sqlx::query_as(
            "SELECT order_id, placed_by, item, quantity FROM orders \
             WHERE placed_by = $1 ORDER BY order_id LIMIT 1000",
        )
        .bind(signed_in(&parts)?.name())
        .fetch_all(&self.pool)
        .await
        .map_err(failed)?;
        let orders = orders.into_iter().map(Order::from).collect();
        Ok(Json(Listed { orders }))
    }
}

#[tool_handler(router = self.tool_router)]
impl rmcp::ServerHandler for Orders {}

fn signed_in(parts: &Parts) -> Result<&User, ErrorData> {
    User::of(parts).ok_or_else(|| ErrorData::invalid_request("sign in first", None))
}

fn failed(error: impl fmt::Display) -> ErrorData {
    ErrorData::internal_error(format!("the database failed: {error}"), None)
}

async fn make_table(pool: &PgPool, schema: &str) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin().await?;
    // IF NOT EXISTS is no protection against several servers that start at once.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('mcp-idempotent example http_postgres'))")
        .execute(&mut *tx)
        .await?;
    // The name was checked to be a plain one.
    sqlx::query(AssertSqlSafe(format!(
        "CREATE SCHEMA IF NOT EXISTS {schema}"
    )))
    .execute(&mut *tx)
    .await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS orders (
            order_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            placed_by text NOT NULL,
            item text NOT NULL,
            quantity integer NOT NULL
        )",
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await
}
