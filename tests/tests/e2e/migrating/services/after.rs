//! A server whose tool calls services that take a pool.

use mcp_idempotent_tower::{CallPool, Idempotency, PostgresStore, idempotent};
use rmcp::{
    ErrorData, ServerHandler,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    tool, tool_handler, tool_router,
};
use sqlx::{Executor, PgPool, Postgres};

type Pool = CallPool<PostgresStore>;

#[derive(Clone)]
struct Billing {
    idempotency: Idempotency<PostgresStore>,
    pool: Pool,
    tool_router: ToolRouter<Self>,
}

pub(crate) async fn server(
    pool: PgPool,
    schema: &str,
) -> Result<impl ServerHandler, Box<dyn std::error::Error>> {
    let store = PostgresStore::builder(pool.clone())
        .with_schema(schema)
        .build()?;
    store.migrate().await?;
    let pool = Pool::new(store.clone(), pool);
    let idempotency = Idempotency::builder("billing", store)
        .with_fixed_scope("desk")
        .build()?;
    Ok(Billing {
        idempotency,
        pool,
        tool_router: Billing::tool_router(),
    })
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Billing {}

type Answer = Result<String, ErrorData>;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Charge {
    customer: String,
    cents: i64,
}

// The tool, and the services that it calls.

#[tool_router]
impl Billing {
    #[idempotent(transaction)]
    #[tool]
    async fn charge(&self, Parameters(c): Parameters<Charge>) -> Answer {
        book(&self.pool, &c).await.map_err(failed)?;
        Ok("charged".into())
    }
}

fn failed(error: sqlx::Error) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

/// Books the charge, and adds it to the customer's total.
async fn book(pool: &Pool, c: &Charge) -> Result<(), sqlx::Error> {
    insert(pool, c).await?;
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO totals VALUES ($1, $2)")
        .bind(&c.customer)
        .bind(c.cents)
        .execute(&mut *tx)
        .await?;
    tx.commit().await
}

async fn insert(
    executor: impl Executor<'_, Database = Postgres>,
    c: &Charge,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO charges (customer, cents) VALUES ($1, $2)")
        .bind(&c.customer)
        .bind(c.cents)
        .execute(executor)
        .await?;
    Ok(())
}
