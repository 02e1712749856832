//! A server whose tool writes through tokio-postgres. Its transaction also runs the attempt's completion.

use std::sync::Arc;

use mcp_idempotent_tower::{Attempt, Idempotency, PostgresStore, idempotent};
use rmcp::{ErrorData, Json, handler::server::wrapper::Parameters, tool, tool_router};
use tokio_postgres::{Client, Error, NoTls};

use super::{Charge, Receipt, failed};

#[derive(Clone)]
pub(crate) struct Billing {
    pub(crate) idempotency: Idempotency<PostgresStore>,
    pub(crate) url: Arc<str>,
}

#[tool_router(server_handler)]
impl Billing {
    /// Charge a card, once.
    // A transaction that did not commit had no effect, and one of an attempt that lost its lease cannot
    // commit. So after an error, and after a crash, a retry may run again.
    #[idempotent(on_error = release, on_doubt = rerun)]
    #[tool]
    async fn charge_card(
        &self,
        attempt: Attempt,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        let mut client = connect(&self.url).await.map_err(failed)?;
        let tx = client.transaction().await.map_err(failed)?;
        let charged = "INSERT INTO charges (customer) VALUES ($1) RETURNING id";
        let row = tx.query_one(charged, &[&charge.customer]).await;
        let receipt = Receipt {
            id: row.map_err(failed)?.get(0),
        };
        let completion = attempt.completion(Json(receipt))?;
        tx.execute(
            completion.sql(),
            &[&completion.attempt(), &completion.result()],
        )
        .await
        .map_err(failed)?;
        tx.commit().await.map_err(failed)?;
        Ok(Json(receipt))
    }
}

/// A connection. A server would take one from a pool.
async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    drop(tokio::spawn(connection));
    Ok(client)
}
