//! A server whose tool acts on another system.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use mcp_idempotent_tower::{Idempotency, PostgresStore, idempotent};
use rmcp::{
    ErrorData, ServerHandler,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    tool, tool_handler, tool_router,
};
use sqlx::PgPool;

/// Stands for another system; counts what it was asked to do.
pub(crate) type Bank = Arc<AtomicI64>;

#[derive(Clone)]
struct Billing {
    idempotency: Idempotency<PostgresStore>,
    bank: Bank,
    tool_router: ToolRouter<Self>,
}

pub(crate) async fn server(
    bank: Bank,
    pool: PgPool,
    schema: &str,
) -> Result<impl ServerHandler, Box<dyn std::error::Error>> {
    let store = PostgresStore::builder(pool).with_schema(schema).build()?;
    store.migrate().await?;
    let idempotency = Idempotency::builder("billing", store)
        .with_fixed_scope("desk")
        .build()?;
    Ok(Billing {
        idempotency,
        bank,
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
    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn charge(&self, Parameters(c): Parameters<Charge>) -> Answer {
        self.bank.fetch_add(1, Ordering::Relaxed);
        Ok(format!("charged {} cents to {}", c.cents, c.customer))
    }
}
