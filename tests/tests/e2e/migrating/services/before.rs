//! A server whose tool calls services that take a pool.

use rmcp::{
    ErrorData, ServerHandler,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    tool, tool_handler, tool_router,
};
use sqlx::{Executor, PgPool, Postgres};

struct Billing {
    pool: PgPool,
    tool_router: ToolRouter<Self>,
}

pub(crate) fn server(pool: PgPool) -> impl ServerHandler {
    Billing {
        pool,
        tool_router: Billing::tool_router(),
    }
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
async fn book(pool: &PgPool, c: &Charge) -> Result<(), sqlx::Error> {
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
