//! A server whose tool runs its own statements.

use mcp_idempotent_tower::{Idempotency, PostgresStore, idempotent};
use rmcp::{
    ErrorData, ServerHandler,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    tool, tool_handler, tool_router,
};
use sqlx::{PgConnection, PgPool};

#[derive(Clone)]
struct Billing {
    idempotency: Idempotency<PostgresStore>,
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
    let idempotency = Idempotency::builder("billing", store)
        .with_fixed_scope("desk")
        .build()?;
    Ok(Billing {
        idempotency,
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
    #[idempotent]
    #[tool]
    async fn charge(&self, tx: &mut PgConnection, Parameters(c): Parameters<Charge>) -> Answer {
        sqlx::query("INSERT INTO charges (customer, cents) VALUES ($1, $2)")
            .bind(c.customer)
            .bind(c.cents)
            .execute(tx)
            .await
            .map_err(failed)?;
        Ok("charged".into())
    }
}

fn failed(error: sqlx::Error) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}
