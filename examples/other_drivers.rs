//! Servers whose tool writes through another driver than the store's sqlx. Each charge is made once, however
//! often the call that makes it is repeated.
//!
//! ```text
//! cargo run --example other_drivers tokio-postgres|diesel|sea-orm postgres://…     # speaks MCP over stdio
//! ```

#[path = "other_drivers/diesel.rs"]
mod diesel_async;
#[path = "other_drivers/sea_orm.rs"]
mod seaorm;
#[path = "other_drivers/tokio_postgres.rs"]
mod tokio_pg;

use std::{env, error::Error, fmt::Display, time::Duration};

use mcp_idempotent_tower::{Idempotency, PostgresStore};
use rmcp::{ErrorData, ServerHandler, ServiceExt as _, transport::stdio};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Deserialize, JsonSchema)]
struct Charge {
    customer: String,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
struct Receipt {
    id: i64,
}

fn failed(error: impl Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(driver), Some(url)) = (arguments.next(), arguments.next()) else {
        return Err("usage: other_drivers tokio-postgres|diesel|sea-orm postgres://…".into());
    };
    let store = PostgresStore::connect(&url)?;
    store.migrate().await?;
    let idempotency = Idempotency::builder("billing", store)
        .with_fixed_scope("stdio")
        .build()?;
    match &*driver {
        "tokio-postgres" => {
            let (idempotency, url) = (idempotency.clone(), url.into());
            serve(tokio_pg::Billing { idempotency, url }).await?;
        }
        "diesel" => {
            let (idempotency, url) = (idempotency.clone(), url.into());
            serve(diesel_async::Billing { idempotency, url }).await?;
        }
        "sea-orm" => {
            let idempotency = idempotency.clone();
            serve(seaorm::Billing { idempotency }).await?;
        }
        _ => return Err(format!("no such driver here: {driver}").into()),
    }
    idempotency.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}

async fn serve(server: impl ServerHandler) -> Result<(), Box<dyn Error>> {
    server.serve(stdio()).await?.waiting().await?;
    Ok(())
}
