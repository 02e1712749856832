//! The one connection that writes.
//!
//! SQLite has one writer at a time, so a store keeps one connection for everything it writes.
//! Callers [queue](super::queue) for it in memory and hold nothing while they wait. Other processes
//! (and other stores in this process) compete for the file's own lock, which is requested in short
//! tries with a backoff.
//!
//! Three things are done to that connection once, when it is opened:
//!
//! - It gets the hooks that tell [our commits from others](super::watch).
//! - The driver's count of open transactions is raised to 2 and stays there. A nested `begin()` by
//!   the handler is therefore a savepoint, while our own BEGIN and COMMIT are ordinary prepared
//!   statements. If a nested `begin()` fails or is cancelled, the driver queues a rollback; at 2 it
//!   goes to a savepoint that does not exist, at 1 it would roll back the whole transaction.
//! - The busy timeout is short, because the driver's thread sleeps during it and cannot be
//!   interrupted.

use std::{mem::ManuallyDrop, sync::Arc, time::Duration};

use sqlx::{
    AssertSqlSafe, Connection as _, SqlSafeStr as _, SqlStr, SqliteConnection, SqlitePool,
    sqlite::SqliteArguments,
};
use tokio::time::{Instant, sleep};

use super::{
    batch,
    error::{is_busy, store_error},
    watch::Watch,
};
use crate::store::{StoreError, StoreErrorKind};

/// How long SQLite itself waits for a lock before it returns the error to us.
const BUSY_TIMEOUT: &str = "PRAGMA busy_timeout = 20";

/// `synchronous = FULL`, as SQLite numbers it: every commit reaches the disk.
const FULL: i64 = 2;
/// Not a setting: a statement that should have changed it failed.
const UNKNOWN: i64 = -1;

/// The writing connection.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) connection: SqliteConnection,
    pub(super) watch: Arc<Watch>,
    pub(super) opened: Instant,
    /// The connection's original `synchronous` setting, and the current one.
    synchronous: (i64, i64),
}

impl Writer {
    /// Opens the connection. Another process may have exclusive use of the file for a moment, when
    /// it is the first to open it or the last to close it; this waits for that.
    pub(super) async fn open(pool: &SqlitePool, deadline: Instant) -> Result<Self, StoreError> {
        let mut backoff = Backoff::until(deadline);
        let opened = async {
            loop {
                match Self::set_up(pool).await {
                    Ok(opened) => return Ok(opened),
                    Err(error) => backoff.retry(error).await?,
                }
            }
        };
        opened
            .await
            .map_err(|error| store_error("opening the writing connection", error))?
    }

    async fn set_up(pool: &SqlitePool) -> Result<Result<Self, StoreError>, sqlx::Error> {
        // Taken from the pool, so that the pool's own connection set-up applies. Then detached, so
        // that a pool of one still serves readers.
        let mut connection = pool.acquire().await?.detach();
        sqlx::query(BUSY_TIMEOUT).execute(&mut connection).await?;
        let (file, journal, synchronous): (String, String, i64) = sqlx::query_as(
            "SELECT (SELECT file FROM pragma_database_list WHERE name = 'main'), \
             (SELECT journal_mode FROM pragma_journal_mode), \
             (SELECT synchronous FROM pragma_synchronous)",
        )
        .fetch_one(&mut connection)
        .await?;
        if file.is_empty() {
            return Ok(Err(StoreError::new(
                StoreErrorKind::Misconfigured,
                "SQLite store: this is a database in memory, which is lost when its connection \
                 closes; use a file, or `MemoryStore`",
            )));
        }
        if journal != "wal" {
            return Ok(Err(StoreError::new(
                StoreErrorKind::Misconfigured,
                format!(
                    "SQLite store: journal_mode is {journal}, but only WAL mode lets readers work \
                     beside a writer; run `PRAGMA journal_mode = WAL` once"
                ),
            )));
        }
        for _ in 0..2 {
            // Deliberately never ended: see the module's page.
            let _counted = ManuallyDrop::new(connection.begin().await?);
        }
        sqlx::query("ROLLBACK").execute(&mut connection).await?;

        let watch = Arc::new(Watch::default());
        watch.install(&mut connection.lock_handle().await?)?;
        Ok(Ok(Self {
            connection,
            watch,
            opened: Instant::now(),
            synchronous: (synchronous, synchronous),
        }))
    }

    /// Puts before `statement`, which is to run outside a transaction, the setting of how durable
    /// commits are from now on: they reach the disk whatever the connection's original setting
    /// (`durable`), or follow that setting. Both go to the connection's thread together. If they
    /// succeed, call [`is_set`](Self::is_set).
    pub(super) fn at(&mut self, durable: bool, statement: &SqlStr) -> (SqlStr, Option<i64>) {
        let (original, current) = self.synchronous;
        let level = if durable {
            original.max(FULL)
        } else {
            original
        };
        if level == current {
            return (statement.clone(), None);
        }
        self.synchronous.1 = UNKNOWN;
        let both = format!("PRAGMA synchronous = {level}; {}", statement.as_str());
        (AssertSqlSafe(both).into_sql_str(), Some(level))
    }

    pub(super) fn is_set(&mut self, level: Option<i64>) {
        if let Some(level) = level {
            self.synchronous.1 = level;
        }
    }

    /// Takes SQLite's write lock. After an error that [`is_busy`] recognises, no transaction is
    /// open.
    pub(super) async fn begin(&mut self, durable: bool) -> Result<(), sqlx::Error> {
        let (text, level) = self.at(durable, &SqlStr::from_static("BEGIN IMMEDIATE"));
        sqlx::query(text).execute(&mut self.connection).await?;
        self.is_set(level);
        Ok(())
    }

    /// Commits a transaction that no handler holds.
    pub(super) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        let commit = SqlStr::from_static("COMMIT");
        let arguments = Ok(SqliteArguments::default());
        batch::run(&mut self.connection, &commit, arguments, 1)
            .await
            .done
    }

    /// Rolls back. Afterwards no handler holds the transaction, whether there was one or not.
    pub(super) async fn roll_back(&mut self) -> Result<(), sqlx::Error> {
        let rolled_back = sqlx::query("ROLLBACK").execute(&mut self.connection).await;
        // Not earlier, because statements that the handler left behind still run before the
        // ROLLBACK.
        self.watch.let_go();
        rolled_back.map(drop)
    }
}

/// Polls for locks that other processes hold.
#[derive(Debug)]
pub(super) struct Backoff {
    deadline: Instant,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(25);

    pub(super) const fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            next: Self::FIRST,
            longest: Self::LONGEST,
        }
    }

    /// For statements that a lease depends on. Polls often enough not to miss the rest between
    /// another process's handlers.
    pub(super) const fn eager(deadline: Instant) -> Self {
        Self {
            longest: Self::FIRST,
            ..Self::until(deadline)
        }
    }

    /// Called after a failed try. If the error is a lock and time is left, waits before the
    /// next try; otherwise returns the error.
    pub(super) async fn retry(&mut self, error: sqlx::Error) -> Result<(), sqlx::Error> {
        if !is_busy(&error) || Instant::now() >= self.deadline {
            return Err(error);
        }
        sleep(self.next.min(self.deadline - Instant::now())).await;
        self.next = (self.next * 2).min(self.longest);
        Ok(())
    }
}
