//! A server whose tool runs its own statements.

use rmcp::{
    ErrorData, ServerHandler,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    tool, tool_handler, tool_router,
};
use sqlx::PgPool;

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
        sqlx::query("INSERT INTO charges (customer, cents) VALUES ($1, $2)")
            .bind(c.customer)
            .bind(c.cents)
            .execute(&self.pool)
            .await
            .map_err(failed)?;
        Ok("charged".into())
    }
}

fn failed(error: sqlx::Error) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}
