//! The store: its settings, its pool, and reading beside a writer.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use sqlx::{SqlStr, SqliteConnection, SqlitePool, sqlite::SqliteRow};
use tokio::time::{Instant, timeout_at};

use super::{
    batch::Encoded,
    error::{busy, store_error},
    queue::WriterQueue,
    row::{self, Found},
    statement::Statements,
    writer::Backoff,
};
use crate::store::{CallInfo, Claim, StoreError};

pub(super) type Hook = dyn for<'c> Fn(&'c mut SqliteConnection, &'c CallInfo) -> BoxFuture<'c, Result<(), sqlx::Error>>
    + Send
    + Sync;

/// Keeps records in a SQLite file. Clones share one writer. See the [module](super).
#[derive(Clone)]
pub struct SqliteStore {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) pool: SqlitePool,
    pub(super) writers: WriterQueue,
    pub(super) statements: Statements,
    pub(super) prefix: Box<str>,
    pub(super) wait_bound: Duration,
    pub(super) transaction_limit: Duration,
    pub(super) on_begin: Option<Box<Hook>>,
}

impl SqliteStore {
    /// The pool, for your own reads and writes.
    #[must_use]
    pub fn pool(&self) -> &SqlitePool {
        &self.shared.pool
    }

    /// Whether this is a clone of `other`.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Waits for a running transaction, then closes the store's writing connection and the pool.
    pub async fn close(&self) {
        self.shared.writers.close().await;
        self.shared.pool.close().await;
    }

    pub(super) fn deadline(&self) -> Instant {
        Self::after(self.shared.wait_bound)
    }

    /// For statements that a lease depends on: as long as a handler may hold the writer, plus the
    /// wait bound.
    pub(super) fn lease_deadline(&self) -> Instant {
        let Shared {
            wait_bound,
            transaction_limit,
            ..
        } = *self.shared;
        Self::after(wait_bound.saturating_add(transaction_limit))
    }

    fn after(wait: Duration) -> Instant {
        const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        Instant::now() + wait.min(FAR)
    }

    /// Looks up a record, beside any writer.
    pub(super) async fn read(&self, claim: &Claim, deadline: Instant) -> Result<Found, StoreError> {
        let statement = &self.shared.statements.look_up;
        let rows = self
            .rows("looking up", statement, row::looked_up(claim), deadline)
            .await?;
        rows.first()
            .map_or(Ok(Found::Nothing), row::decode)
            .map_err(|error| store_error("looking up", error))
    }

    /// Reads rows, beside any writer.
    pub(super) async fn rows(
        &self,
        doing: &str,
        statement: &SqlStr,
        arguments: Encoded,
        deadline: Instant,
    ) -> Result<Vec<SqliteRow>, StoreError> {
        let reading = async {
            let arguments = arguments.map_err(sqlx::Error::Encode)?;
            let mut backoff = Backoff::until(deadline);
            let mut connection = self.shared.pool.acquire().await?;
            loop {
                let rows = sqlx::query_with(statement.clone(), arguments.clone())
                    .fetch_all(&mut *connection)
                    .await;
                match rows {
                    Ok(rows) => return Ok(rows),
                    Err(error) => backoff.retry(error).await?,
                }
            }
        };
        timeout_at(deadline, reading)
            .await
            .map_err(|_| busy("a connection"))?
            .map_err(|error| store_error(doing, error))
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("prefix", &self.shared.prefix)
            .field("wait_bound", &self.shared.wait_bound)
            .field("transaction_limit", &self.shared.transaction_limit)
            .finish_non_exhaustive()
    }
}

pub(super) fn micros(duration: Duration) -> i64 {
    // About thirty thousand years, so that sums of three still fit.
    const MOST: u128 = 1_000_000_000_000_000_000;
    i64::try_from(duration.as_micros().min(MOST)).unwrap_or(i64::MAX / 8)
}
