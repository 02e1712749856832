//! sea-orm on the transaction of a call.
//!
//! ```no_run
//! use mcp_idempotent_tower::{Idempotency, PostgresStore, idempotent, sea_orm::OnConnection};
//! use rmcp::{ErrorData, tool, tool_router};
//! use sea_orm::ConnectionTrait as _;
//! use sqlx::PgConnection;
//!
//! #[derive(Clone)]
//! struct Billing { idempotency: Idempotency<PostgresStore> }
//!
//! #[tool_router(server_handler)]
//! impl Billing {
//!     /// Charge a card, once.
//!     #[idempotent]
//!     #[tool]
//!     async fn charge(&self, tx: &mut PgConnection) -> Result<String, ErrorData> {
//!         let db = OnConnection::new(tx); // entities and queries take `&db`
//!         db.execute_unprepared("INSERT INTO charges DEFAULT VALUES").await
//!             .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
//!         Ok("charged".to_owned())
//!     }
//! }
//! ```

use std::sync::Arc;

use ::sea_orm::{
    ConnectionTrait, DbBackend, DbErr, ExecResult, QueryResult, RuntimeErr, Statement,
    prelude::async_trait::async_trait, sea_query::Values,
};
use mcp_idempotent_core::sqlx::{self, AssertSqlSafe, PgConnection, Postgres, query::Query};
use sea_query_sqlx::SqlxValues;
use tokio::sync::Mutex;

/// A connection of sqlx, as sea-orm takes it: `&db` where a query wants a `&DatabaseConnection`. It is the
/// connection of the call's transaction. It has no `begin`; for a savepoint, call sqlx's on the connection
/// before you hand it over.
#[derive(Debug)]
pub struct OnConnection<'c>(Mutex<&'c mut PgConnection>);

impl<'c> OnConnection<'c> {
    /// Takes the connection, for instance the `&mut PgConnection` of a tool.
    pub fn new(connection: &'c mut PgConnection) -> Self {
        Self(Mutex::new(connection))
    }
}

fn query(statement: &Statement) -> Query<'_, Postgres, SqlxValues> {
    let values = statement.values.clone();
    let values = values.unwrap_or_else(|| Values(Vec::new()));
    sqlx::query_with(AssertSqlSafe(&*statement.sql), SqlxValues(values))
}

fn executing(error: sqlx::Error) -> DbErr {
    DbErr::Exec(RuntimeErr::SqlxError(Arc::new(error)))
}

fn querying(error: sqlx::Error) -> DbErr {
    DbErr::Query(RuntimeErr::SqlxError(Arc::new(error)))
}

#[async_trait]
impl ConnectionTrait for OnConnection<'_> {
    fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        let mut connection = self.0.lock().await;
        let done = query(&statement).execute(&mut **connection).await;
        done.map(Into::into).map_err(executing)
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        let mut connection = self.0.lock().await;
        let done = sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut **connection)
            .await;
        done.map(Into::into).map_err(executing)
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        let mut connection = self.0.lock().await;
        let row = query(&statement).fetch_optional(&mut **connection).await;
        row.map(|row| row.map(Into::into)).map_err(querying)
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        let mut connection = self.0.lock().await;
        let rows = query(&statement).fetch_all(&mut **connection).await;
        rows.map(|rows| rows.into_iter().map(Into::into).collect())
            .map_err(querying)
    }
}
