//! A server whose tool acts on another system.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use rmcp::{
    ErrorData, ServerHandler,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    tool, tool_handler, tool_router,
};

/// Stands for another system; counts what it was asked to do.
pub(crate) type Bank = Arc<AtomicI64>;

struct Billing {
    bank: Bank,
    tool_router: ToolRouter<Self>,
}

pub(crate) fn server(bank: Bank) -> impl ServerHandler {
    Billing {
        bank,
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
        self.bank.fetch_add(1, Ordering::Relaxed);
        Ok(format!("charged {} cents to {}", c.cents, c.customer))
    }
}
