//! The smallest server that keeps the promise: each expense is booked once, however often the call
//! that books it is repeated.
//!
//! ```text
//! cargo run --example hello_sqlite [FILE]     # speaks MCP over stdio; the default is expenses.db
//! ```

use std::{env, error::Error, time::Duration};

use mcp_idempotent_tower::{Idempotency, SqliteStore, idempotent};
use rmcp::{
    ErrorData, Json, ServiceExt as _, handler::server::wrapper::Parameters, tool, tool_router,
    transport::stdio,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

#[derive(Deserialize, JsonSchema)]
struct Expense {
    what: String,
    cents: i64,
}

#[derive(Serialize, JsonSchema)]
struct Booked {
    id: i64,
}

#[derive(Clone)]
struct Expenses {
    idempotency: Idempotency<SqliteStore>,
}

#[tool_router(server_handler)]
impl Expenses {
    /// Book an expense.
    #[idempotent]
    #[tool]
    async fn book_expense(
        &self,
        // The open transaction. The expense commits together with the record of this call.
        tx: &mut SqliteConnection,
        Parameters(expense): Parameters<Expense>,
    ) -> Result<Json<Booked>, ErrorData> {
        let id =
            sqlx::query_scalar("INSERT INTO expenses (what, cents) VALUES (?, ?) RETURNING id")
                .bind(expense.what)
                .bind(expense.cents)
                .fetch_one(tx)
                .await
                .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(Json(Booked { id }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = env::args_os().nth(1).unwrap_or("expenses.db".into());
    let store = SqliteStore::open(file).await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS expenses (id INTEGER PRIMARY KEY, what TEXT, cents INTEGER)",
    )
    .execute(store.pool())
    .await?;

    let idempotency = Idempotency::for_stdio("expenses", store)?;
    let server = Expenses {
        idempotency: idempotency.clone(),
    };
    server.serve(stdio()).await?.waiting().await?;
    // A call outlives its client. Give it time to finish.
    idempotency.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}
