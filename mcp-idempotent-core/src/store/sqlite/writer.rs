//! The one connection that writes.
//!
//! SQLite has one writer at a time, so a store keeps one connection for all that it writes. Who
//! wants it [queues](super::queue) in memory, without holding anything. Other processes (and other
//! stores of this one) are met at the file's own lock, by short tries with a backoff.
//!
//! Three things are done to that connection, once, when it is opened:
//!
//! - It gets the hooks that tell [whose commit it is](super::watch).
//! - The driver's count of open transactions is raised to 2 and stays there. So a nested
//!   `begin()` of the handler is a savepoint, while our own BEGIN and COMMIT are ordinary
//!   prepared statements. And the rollback that the driver queues for a nested `begin()` that
//!   failed or was cancelled goes to a savepoint that does not exist; at 1 it would be a ROLLBACK
//!   of the whole transaction.
//! - The busy timeout is short, because the driver's thread sleeps in it and cannot be called
//!   back.

use std::{mem::ManuallyDrop, sync::Arc, time::Duration};

use sqlx::{
    AssertSqlSafe, Connection as _, SqlStr, SqliteConnection, SqlitePool, sqlite::SqliteArguments,
};
use tokio::time::{Instant, sleep};

use super::{
    batch,
    error::{is_busy, store_error},
    watch::Watch,
};
use crate::store::{StoreError, StoreErrorKind};

/// How long SQLite itself waits for a lock before we are asked.
const BUSY_TIMEOUT: &str = "PRAGMA busy_timeout = 20";

/// `synchronous = FULL`, as SQLite numbers it: every commit reaches the disk.
const FULL: i64 = 2;

/// The writing connection.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) connection: SqliteConnection,
    pub(super) watch: Arc<Watch>,
    pub(super) opened: Instant,
    /// The `synchronous` setting that the connection came with, and the present one.
    synchronous: (i64, i64),
}

impl Writer {
    /// Opens the connection, also while others have the file for themselves: who opens it first, or
    /// closes it last, does for a moment.
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
        // Through the pool, so that its own set-up of connections applies; then out of it, so
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
                "SQLite store: this is a database in memory, which lives and dies with its \
                 connection; use a file, or `MemoryStore`",
            )));
        }
        if journal != "wal" {
            return Ok(Err(StoreError::new(
                StoreErrorKind::Misconfigured,
                format!(
                    "SQLite store: journal_mode is {journal}, but readers go on beside a writer \
                     only in WAL mode; run `PRAGMA journal_mode = WAL` once"
                ),
            )));
        }
        for _ in 0..2 {
            // Never ended on purpose: see the module's page.
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

    async fn synchronise(&mut self, level: i64) -> Result<(), sqlx::Error> {
        if self.synchronous.1 != level {
            sqlx::query(AssertSqlSafe(format!("PRAGMA synchronous = {level}")))
                .execute(&mut self.connection)
                .await?;
            self.synchronous.1 = level;
        }
        Ok(())
    }

    /// From now on commits reach the disk, whatever the connection came with.
    pub(super) async fn make_durable(&mut self) -> Result<(), sqlx::Error> {
        self.synchronise(self.synchronous.0.max(FULL)).await
    }

    /// From now on commits are as durable as the connection came.
    pub(super) async fn make_ordinary(&mut self) -> Result<(), sqlx::Error> {
        self.synchronise(self.synchronous.0).await
    }

    /// Takes SQLite's write lock. An error that [`is_busy`] leaves the connection as it was.
    pub(super) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        sqlx::query("BEGIN IMMEDIATE")
            .execute(&mut self.connection)
            .await?;
        Ok(())
    }

    /// Commits what no handler holds.
    pub(super) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        let commit = SqlStr::from_static("COMMIT");
        let arguments = Ok(SqliteArguments::default());
        batch::run(&mut self.connection, &commit, arguments, 1)
            .await
            .done
    }

    /// Rolls back; nobody holds the transaction any more, whether there was one or not.
    pub(super) async fn roll_back(&mut self) -> Result<(), sqlx::Error> {
        let rolled_back = sqlx::query("ROLLBACK").execute(&mut self.connection).await;
        // Not before: what the handler left behind comes first.
        self.watch.let_go();
        rolled_back.map(drop)
    }
}

/// Short tries against the locks of other processes.
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

    /// For what a lease depends on: often enough not to miss the rest between two handlers of
    /// another process.
    pub(super) const fn eager(deadline: Instant) -> Self {
        Self {
            longest: Self::FIRST,
            ..Self::until(deadline)
        }
    }

    /// After a failed try: waits before the next one if the error is a lock and there is time,
    /// otherwise gives the error back.
    pub(super) async fn retry(&mut self, error: sqlx::Error) -> Result<(), sqlx::Error> {
        if !is_busy(&error) || Instant::now() >= self.deadline {
            return Err(error);
        }
        sleep(self.next.min(self.deadline - Instant::now())).await;
        self.next = (self.next * 2).min(self.longest);
        Ok(())
    }
}
