//! The expansion raises no lint of its own.
#![deny(warnings, missing_docs, unreachable_pub, rust_2018_idioms, unused)]

use mcp_idempotent_tower::{Idempotency, idempotent, store::sqlite::SqliteStore};
use rmcp::{ErrorData, Json, handler::server::wrapper::Parameters, tool, tool_router};
use sqlx::SqliteConnection;

#[derive(Clone)]
struct Server {
    idempotency: Idempotency<SqliteStore>,
}

#[tool_router(server_handler)]
impl Server {
    /// Books.
    #[idempotent]
    #[tool]
    async fn book(
        &self,
        connection: &mut SqliteConnection,
        Parameters(amount): Parameters<std::collections::BTreeMap<String, i64>>,
    ) -> Result<Json<i64>, ErrorData> {
        let _ = connection;
        Ok(Json(amount.values().sum()))
    }

    /// Says hello.
    #[idempotent(on_error = in_doubt)]
    #[tool]
    #[expect(clippy::unused_async, reason = "moves to the author's own function")]
    async fn greet(&self) -> String {
        String::new()
    }
}

fn main() {
    fn is_handler<T: rmcp::ServerHandler>() {}
    is_handler::<Server>();
}
