//! A pooled connection that is closed unless it came to a known-good end.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, Postgres, pool::PoolConnection,
    postgres::PgTransactionManager,
};
use sqlx_core::transaction::TransactionManager;

use super::lock::Mark;

/// A connection from the pool. Dropping it closes it, unless it was released. So a cancelled future
/// or an unexpected error never returns an open transaction to the pool (sqlx 0.9 does that,
/// transact-rs/sqlx#4385).
#[derive(Debug)]
pub(super) struct Session {
    connection: PoolConnection<Postgres>,
    clean: bool,
}

impl Session {
    pub(super) fn new(connection: PoolConnection<Postgres>) -> Self {
        Self {
            connection,
            clean: false,
        }
    }

    /// Gives back a connection that is outside any transaction.
    pub(super) fn release(mut self) {
        self.clean = depth(&self.connection) == 0;
    }

    /// Gives back a connection at the start of an empty chained transaction (after `COMMIT AND
    /// CHAIN`). The ROLLBACK goes out together with the ping with which the pool takes it back.
    pub(super) fn release_chained(mut self) {
        if depth(&self.connection) == 1 {
            PgTransactionManager::start_rollback(&mut self.connection);
            self.clean = true;
        }
    }

    /// Whether sqlx believes that it is inside a transaction. Such a connection goes back to the pool
    /// at the start of an empty one.
    pub(super) fn is_chained(&self) -> bool {
        depth(&self.connection) == 1
    }

    /// Opens a transaction in one round trip, with a batch that starts with BEGIN. sqlx counts it as a
    /// transaction of depth 1, so a `begin` by the handler is a savepoint. It returns no rows, so a
    /// batch can only answer by raising an error.
    pub(super) async fn begin(&mut self, batch: String) -> Result<(), sqlx::Error> {
        drain(self).await?;
        let batch = sqlx::SqlSafeStr::into_sql_str(AssertSqlSafe(batch));
        PgTransactionManager::begin(&mut self.connection, Some(batch)).await
    }
}

impl Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.clean {
            self.connection.close_on_drop();
        }
    }
}

fn depth(connection: &PgConnection) -> usize {
    PgTransactionManager::get_transaction_depth(connection)
}

/// Reads what abandoned statements have left unread, and drops their errors. Otherwise sqlx would give
/// such an error to the connection's next user, as if it were the answer to what they sent. If nothing
/// was abandoned, this neither sends nor waits.
pub(super) async fn drain(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    loop {
        match connection.flush().await {
            Ok(()) => return Ok(()),
            Err(error) if error.as_database_error().is_some() => {
                tracing::debug!(%error, "a statement that was given up has failed");
            }
            Err(error) => return Err(error),
        }
    }
}

/// The transaction that a handler writes through. Dropping it closes the connection, and the server
/// then rolls back.
pub struct PgTransaction {
    pub(super) session: Session,
    pub(super) mark: Mark,
}

impl Deref for PgTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.session
    }
}

impl DerefMut for PgTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.session
    }
}

impl fmt::Debug for PgTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgTransaction").finish_non_exhaustive()
    }
}
