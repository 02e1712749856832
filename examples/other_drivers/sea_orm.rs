//! A server whose tool writes through sea-orm. It uses the same sqlx as the store, so it works on the call's own
//! transaction, and the tool has nothing to complete.

use mcp_idempotent_tower::{Idempotency, PostgresStore, idempotent, sea_orm::OnConnection};
use rmcp::{ErrorData, Json, handler::server::wrapper::Parameters, tool, tool_router};
use sea_orm::{ConnectionTrait as _, DbBackend, Statement};
use sqlx::PgConnection;

use super::{Charge, Receipt, failed};

#[derive(Clone)]
pub(crate) struct Billing {
    pub(crate) idempotency: Idempotency<PostgresStore>,
}

#[tool_router(server_handler)]
impl Billing {
    /// Charge a card, once.
    #[idempotent]
    #[tool]
    async fn charge_card(
        &self,
        tx: &mut PgConnection,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        let db = OnConnection::new(tx);
        // Entities and queries take `&db` like any other connection.
        let charged = Statement::from_sql_and_values(
            DbBackend::Postgres,
            "INSERT INTO charges (customer) VALUES ($1) RETURNING id",
            [charge.customer.into()],
        );
        let row = db.query_one_raw(charged).await.map_err(failed)?;
        let row = row.ok_or_else(|| failed("no row"))?;
        let id = row.try_get_by_index(0).map_err(failed)?;
        Ok(Json(Receipt { id }))
    }
}
