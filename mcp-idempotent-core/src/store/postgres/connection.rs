//! A pooled connection that is closed unless it was brought to a known-good end, and batches of
//! statements that go over it in one round trip.

use std::ops::{Deref, DerefMut};

use futures_util::TryStreamExt;
use sqlx::{
    AssertSqlSafe, Connection as _, Either, PgConnection, Postgres,
    pool::PoolConnection,
    postgres::{PgRow, PgTransactionManager},
};
use sqlx_core::transaction::TransactionManager;

use super::error;

/// A connection of the pool. Dropped as it is, it is closed: a future that was cancelled, or an
/// error at an unforeseen place, never returns an open transaction to the pool (which sqlx 0.9
/// does, transact-rs/sqlx#4385).
#[derive(Debug)]
pub(super) struct Leased {
    connection: PoolConnection<Postgres>,
    clean: bool,
}

impl Leased {
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

    /// Returns a connection that is outside any transaction, or at the start of an empty one, as
    /// sqlx has it.
    pub(super) fn release_as_it_is(self) {
        if depth(&self.connection) == 0 {
            self.release();
        } else {
            self.release_chained();
        }
    }

    /// Opens a transaction by a batch that starts with BEGIN, in one round trip. For sqlx it is a
    /// transaction of depth 1, so that a `begin` of the handler is a savepoint. Rows are not to
    /// be had; a batch answers by raising an error.
    pub(super) async fn begin(&mut self, batch: String) -> Result<(), sqlx::Error> {
        drain(self).await?;
        let batch = sqlx::SqlSafeStr::into_sql_str(AssertSqlSafe(batch));
        PgTransactionManager::begin(&mut self.connection, Some(batch)).await
    }
}

impl Deref for Leased {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Leased {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        if !self.clean {
            self.connection.close_on_drop();
        }
    }
}

fn depth(connection: &PgConnection) -> usize {
    PgTransactionManager::get_transaction_depth(connection)
}

/// What a batch did: how far it came, what it returned, what stopped it.
#[derive(Debug)]
pub(super) struct Answer {
    /// Rows affected, for each statement that was completed.
    pub(super) affected: Vec<u64>,
    /// All rows of all statements.
    pub(super) rows: Vec<PgRow>,
    /// What stopped the batch.
    pub(super) error: Option<sqlx::Error>,
}

impl Answer {
    /// The row of the last statement before the COMMIT that ends the batch, if it has one, or what
    /// went wrong.
    pub(super) fn into_row_before_commit(mut self) -> Result<Option<PgRow>, sqlx::Error> {
        match self.error {
            Some(error) => Err(error),
            None => {
                let rows = self.affected.iter().rev().nth(1).copied().unwrap_or(0);
                Ok(if rows == 0 { None } else { self.rows.pop() })
            }
        }
    }

    /// The last row, or what went wrong.
    pub(super) fn into_last_row(mut self) -> Result<Option<PgRow>, sqlx::Error> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.rows.pop()),
        }
    }
}

/// Reads what statements that somebody gave up have left unread, and drops their errors: sqlx would
/// give such an error to whoever uses the connection next, as if it were an answer to what they
/// sent. Where nothing was given up this neither sends nor waits.
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

/// Leaves the transaction of a batch that ends in a plain COMMIT and was stopped by an error.
/// Whether it was still open: only then is it certain that the COMMIT was not carried out.
pub(super) async fn undo(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    drain(connection).await?;
    match run(connection, UNDO.to_owned()).await.error {
        None => Ok(true),
        Some(error) if error::sqlstate(&error).as_deref() == Some(error::NO_TRANSACTION) => {
            Ok(false)
        }
        Some(error) => Err(error),
    }
}

/// Rolls back, and fails (25P01) outside a transaction, where a plain ROLLBACK would succeed.
pub(super) const UNDO: &str = "ROLLBACK AND CHAIN;ROLLBACK;";

/// Runs a batch of statements in one round trip of the simple query protocol. Its error is one of
/// these statements, or of the connection.
pub(super) async fn run(connection: &mut PgConnection, batch: String) -> Answer {
    let mut answer = Answer {
        affected: Vec::new(),
        rows: Vec::new(),
        error: None,
    };
    if let Err(error) = drain(connection).await {
        answer.error = Some(error);
        return answer;
    }
    let mut results = sqlx::raw_sql(AssertSqlSafe(batch)).fetch_many(connection);
    loop {
        match results.try_next().await {
            Ok(Some(Either::Left(done))) => answer.affected.push(done.rows_affected()),
            Ok(Some(Either::Right(row))) => answer.rows.push(row),
            Ok(None) => break,
            Err(error) => {
                answer.error = Some(error);
                break;
            }
        }
    }
    answer
}
