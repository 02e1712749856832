//! A server whose tool writes through diesel-async. Its transaction also runs the attempt's completion.

use std::sync::Arc;

use diesel::{
    ExpressionMethods as _, sql_query,
    sql_types::{Bytea, Nullable, Text},
};
use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _};
use mcp_idempotent_tower::{Attempt, Idempotency, PostgresStore, idempotent};
use rmcp::{ErrorData, Json, handler::server::wrapper::Parameters, tool, tool_router};

use super::{Charge, Receipt, failed};

diesel::table! {
    charges (id) {
        id -> Int8,
        customer -> Text,
    }
}

#[derive(Clone)]
pub(crate) struct Billing {
    pub(crate) idempotency: Idempotency<PostgresStore>,
    pub(crate) url: Arc<str>,
}

/// Why a transaction is rolled back. Diesel asks that its own errors become one.
struct Failed(ErrorData);

impl From<diesel::result::Error> for Failed {
    fn from(error: diesel::result::Error) -> Self {
        Self(failed(error))
    }
}

#[tool_router(server_handler)]
impl Billing {
    /// Charge a card, once.
    // See `tokio_postgres.rs` for the two options.
    #[idempotent(on_error = release, on_doubt = rerun)]
    #[tool]
    async fn charge_card(
        &self,
        attempt: Attempt,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        // A server would take one from a pool.
        let mut connection = AsyncPgConnection::establish(&self.url)
            .await
            .map_err(failed)?;
        let charged = connection
            .transaction(async |tx| {
                let id = diesel::insert_into(charges::table)
                    .values(charges::customer.eq(&charge.customer))
                    .returning(charges::id)
                    .get_result(tx)
                    .await?;
                let receipt = Receipt { id };
                let completion = attempt.completion(Json(receipt)).map_err(Failed)?;
                sql_query(completion.sql())
                    .bind::<Text, _>(completion.attempt())
                    .bind::<Nullable<Bytea>, _>(completion.result())
                    .execute(tx)
                    .await?;
                Ok(receipt)
            })
            .await;
        charged.map(Json).map_err(|Failed(error)| error)
    }
}
