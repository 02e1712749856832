//! A pooled connection that is closed unless it was brought to a known-good end.

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

/// A connection of the pool. Dropped as it is, it is closed: a future that was cancelled, or an
/// error at an unforeseen place, never returns an open transaction to the pool (which sqlx 0.9
/// does, transact-rs/sqlx#4385).
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

    /// Returns a connection that is outside any transaction.
    pub(super) fn release(mut self) {
        self.clean = depth(&self.connection) == 0;
    }

    /// Returns a connection that is at the start of an empty chained transaction (after `COMMIT
    /// AND CHAIN`). Its ROLLBACK rides on the ping with which the pool takes a connection back.
    pub(super) fn release_chained(mut self) {
        if depth(&self.connection) == 1 {
            PgTransactionManager::start_rollback(&mut self.connection);
            self.clean = true;
        }
    }

    /// Whether sqlx takes it to be inside a transaction, so that it goes back to the pool at the start
    /// of an empty one.
    pub(super) fn is_chained(&self) -> bool {
        depth(&self.connection) == 1
    }

    /// Opens a transaction by a batch that starts with BEGIN, in one round trip. For sqlx it is a
    /// transaction of depth 1, so that a `begin` of the handler is a savepoint. It returns no rows; a
    /// batch answers by raising an error.
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

/// Reads what statements that somebody gave up have left unread, and drops their errors: sqlx would
/// give such an error to the next user of the connection, as if it answered what they sent. If nothing
/// was given up this neither sends nor waits.
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

/// The transaction that a handler writes through. Dropping it closes the connection, and with it
/// the server rolls back.
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
