//! The one connection that writes.
//!
//! SQLite has one writer at a time, so a store keeps one connection for all that it writes. Who
//! wants it queues in memory, first come first served, without holding anything. Other processes
//! (and other stores of this one) are met at the file's own lock, by short tries with a backoff.
//!
//! Three things are done to that connection, once, when it is opened:
//!
//! - Commit and rollback hooks ([`Watch`]) refuse every commit but ours while a handler holds the
//!   transaction, and notice every way in which it can be rolled back. Ours is told from others
//!   by a collation of that connection, which our finishing batch uses right before its COMMIT:
//!   it runs where SQLite runs, so a COMMIT that the handler sent and did not wait for comes
//!   before it and is refused.
//! - The driver's count of open transactions is raised to 2 and stays there. So a nested
//!   `begin()` of the handler is a savepoint, while our own BEGIN and COMMIT are ordinary
//!   prepared statements. And the rollback that the driver queues for a nested `begin()` that
//!   failed or was cancelled goes to a savepoint that does not exist; at 1 it would be a ROLLBACK
//!   of the whole transaction.
//! - The busy timeout is short, because the driver's thread sleeps in it and cannot be called
//!   back.

use std::{
    mem::ManuallyDrop,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, Connection as _, SqlStr, SqliteConnection, SqlitePool, sqlite::SqliteArguments,
};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::{Instant, sleep, timeout_at},
};

use super::{
    batch,
    error::{busy, is_busy, store_error},
};
use crate::store::{StoreError, StoreErrorKind};

/// How long SQLite itself waits for a lock before we are asked.
const BUSY_TIMEOUT: &str = "PRAGMA busy_timeout = 20";

/// The collation that lets the next commit through.
pub(super) const FINISHING: &str = "mcp_idempotent_finishing";

/// `synchronous = FULL`, as SQLite numbers it: every commit reaches the disk.
const FULL: i64 = 2;

/// What the hooks of the writing connection know.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// A handler holds the transaction: nobody may commit.
    held: AtomicBool,
    /// Somebody tried to, and was refused.
    refused: AtomicBool,
    /// The whole transaction was rolled back, by whatever.
    rolled_back: AtomicBool,
    /// Our finishing batch has come to its COMMIT.
    finishing: AtomicBool,
    /// A commit was let through: the hook is still in its place.
    passed: AtomicBool,
}

impl Watch {
    fn start(&self) {
        for fact in [
            &self.refused,
            &self.rolled_back,
            &self.finishing,
            &self.passed,
        ] {
            fact.store(false, Ordering::SeqCst);
        }
        self.held.store(true, Ordering::SeqCst);
    }

    fn may_commit(&self) -> bool {
        let may = !self.held.load(Ordering::SeqCst)
            || (self.finishing.load(Ordering::SeqCst) && !self.ended_early());
        let fact = if may { &self.passed } else { &self.refused };
        fact.store(true, Ordering::SeqCst);
        may
    }

    /// The transaction is not the one any more that was begun.
    pub(super) fn ended_early(&self) -> bool {
        self.refused_a_commit() || self.saw_rollback()
    }

    pub(super) fn refused_a_commit(&self) -> bool {
        self.refused.load(Ordering::SeqCst)
    }

    pub(super) fn saw_rollback(&self) -> bool {
        self.rolled_back.load(Ordering::SeqCst)
    }
}

/// The writing connection.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) connection: SqliteConnection,
    pub(super) watch: Arc<Watch>,
    opened: Instant,
    /// The `synchronous` setting that the connection came with, and the present one.
    synchronous: (i64, i64),
}

impl Writer {
    async fn open(pool: &SqlitePool) -> Result<Self, StoreError> {
        Self::set_up(pool)
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
        {
            let mut handle = connection.lock_handle().await?;
            let hook = Arc::clone(&watch);
            handle.set_commit_hook(move || hook.may_commit());
            let hook = Arc::clone(&watch);
            handle.set_rollback_hook(move || hook.rolled_back.store(true, Ordering::SeqCst));
            let hook = Arc::clone(&watch);
            handle.create_collation(FINISHING, move |left, right| {
                hook.finishing.store(true, Ordering::SeqCst);
                left.cmp(right)
            })?;
        }
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

    /// Refuses commits from here on, but for the one at the end of a finishing batch.
    pub(super) fn hold(&self) {
        self.watch.start();
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
        self.watch.held.store(false, Ordering::SeqCst);
        rolled_back.map(drop)
    }

    /// Whether the hooks saw the commit that was just made.
    pub(super) fn hooks_are_in_place(&self) -> bool {
        self.watch.passed.load(Ordering::SeqCst)
    }
}

/// The place where the writing connection is kept, and the queue in front of it.
#[derive(Debug, Clone)]
pub(super) struct WriterQueue {
    pool: SqlitePool,
    slot: Arc<Mutex<Option<Writer>>>,
}

impl WriterQueue {
    pub(super) fn new(pool: SqlitePool) -> Self {
        Self {
            pool,
            slot: Arc::new(Mutex::new(None)),
        }
    }

    /// The writing connection, if nobody has it.
    pub(super) async fn try_take(&self, deadline: Instant) -> Result<Option<Checkout>, StoreError> {
        match Arc::clone(&self.slot).try_lock_owned() {
            Ok(slot) => self.fill(slot, deadline).await.map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Queues for the writing connection.
    pub(super) async fn take(&self, deadline: Instant) -> Result<Checkout, StoreError> {
        let lock = Arc::clone(&self.slot).lock_owned();
        let slot = timeout_at(deadline, lock)
            .await
            .map_err(|_| busy("the writer"))?;
        self.fill(slot, deadline).await
    }

    async fn fill(
        &self,
        mut slot: OwnedMutexGuard<Option<Writer>>,
        deadline: Instant,
    ) -> Result<Checkout, StoreError> {
        if self.pool.is_closed() {
            *slot = None;
            return Err(store_error("writing", sqlx::Error::PoolClosed));
        }
        let lifetime = self.pool.options().get_max_lifetime();
        let writer = match slot.take() {
            Some(writer) if lifetime.is_none_or(|most| writer.opened.elapsed() < most) => writer,
            outlived => {
                drop(outlived);
                timeout_at(deadline, Writer::open(&self.pool))
                    .await
                    .map_err(|_| busy("a connection"))??
            }
        };
        Ok(Checkout { writer, slot })
    }

    /// Waits for whoever writes, and closes the writing connection.
    pub(super) async fn close(&self) {
        let writer = self.slot.lock().await.take();
        if let Some(writer) = writer
            && let Err(error) = writer.connection.close().await
        {
            tracing::warn!(%error, "closing the writing connection failed");
        }
    }
}

/// The writing connection in somebody's hands. Dropped, it is closed, which rolls back whatever
/// was open on it; only [`give_back`](Self::give_back), from a known state, keeps it.
#[derive(Debug)]
pub(super) struct Checkout {
    // Before the slot, so that the next in the queue finds this connection closing, not open.
    pub(super) writer: Writer,
    slot: OwnedMutexGuard<Option<Writer>>,
}

impl Checkout {
    pub(super) fn give_back(mut self) {
        self.writer.watch.held.store(false, Ordering::SeqCst);
        *self.slot = Some(self.writer);
    }

    /// Rolls back and keeps the connection, if that went well.
    pub(super) async fn roll_back_and_give_back(mut self) {
        match self.writer.roll_back().await {
            Ok(()) => self.give_back(),
            Err(error) => tracing::warn!(%error, "rolling back failed, the connection is closed"),
        }
    }
}

/// Short tries against the locks of other processes.
#[derive(Debug)]
pub(super) struct Backoff {
    deadline: Instant,
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(25);

    pub(super) const fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            next: Self::FIRST,
        }
    }

    /// After a failed try: waits before the next one if the error is a lock and there is time,
    /// otherwise gives the error back.
    pub(super) async fn retry(&mut self, error: sqlx::Error) -> Result<(), sqlx::Error> {
        if !is_busy(&error) || Instant::now() >= self.deadline {
            return Err(error);
        }
        sleep(self.next.min(self.deadline - Instant::now())).await;
        self.next = (self.next * 2).min(Self::LONGEST);
        Ok(())
    }
}
