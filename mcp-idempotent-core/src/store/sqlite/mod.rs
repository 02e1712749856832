//! Records in a SQLite file: the embedded default, in both modes.
//!
//! ```no_run
//! use mcp_idempotent_core::store::sqlite::SqliteStore;
//!
//! # async fn open() -> Result<(), mcp_idempotent_core::StoreError> {
//! // A pool of its own, in WAL mode, with the tables created:
//! let store = SqliteStore::open("data.db").await?;
//! // Handlers are given a `&mut sqlx::SqliteConnection`; other code reads through the pool.
//! let pool = store.pool();
//! # let _ = pool; Ok(())
//! # }
//! ```
//!
//! # What to know
//!
//! - **One writer.** SQLite lets one transaction write at a time, and a handler in transaction mode
//!   holds that right until it ends. Other writers queue. Within this process the queue is first
//!   come, first served, except that statements that keep or end a running lease go first. Past
//!   [the wait bound](SqliteStoreBuilder::with_wait_bound) a caller gets
//!   [`Busy`](StoreErrorKind::Busy): not committed, retry with the same key. `database is locked`
//!   is never an answer. Replays, look-ups and an operator's listings run beside a writer and take
//!   no write lock.
//! - **One extra connection.** Handlers write on a connection that the store takes out of the pool
//!   and keeps. So a pool of `n` has `n + 1` open connections, and a handler that reads through the
//!   pool cannot starve itself. Settings that the pool makes in `after_connect` apply to this
//!   connection too.
//! - **Only the store ends the transaction.** A nested `begin()` is a savepoint. A commit hook
//!   refuses COMMIT by raw SQL, and a rollback hook notices ROLLBACK by raw SQL. The call is then
//!   answered as outcome unknown, and its key is in doubt. The store replaces any commit and
//!   your own rollback hooks on that connection, and a handler must not set its own.
//! - **A rollback by the handler looks like one by SQLite** (`INSERT OR ROLLBACK`,
//!   `RAISE(ROLLBACK)`, a full disk). Either way nothing was committed. If the handler then returns
//!   a success, the call is answered as outcome unknown; if it returns an error, as not committed.
//! - **Durability.** With `synchronous = FULL` a committed call survives a power loss. With
//!   `NORMAL` a power loss may take the last commits, record and effect together. That is safe for
//!   effects in this file and unsafe for outside ones, so lease-mode claims, takeovers and
//!   resolutions are always committed with `FULL`. The clock is the machine's, read through SQLite.
//! - **A file.** Databases in memory are refused, and so are journal modes other than WAL.
//! - **A late result is fenced.** In lease mode an attempt that finishes after its lease ran out
//!   cannot record its result, even if nobody has touched the record since. The record was in doubt
//!   from that moment on, and a caller may have been told so.

mod batch;
mod builder;
mod error;
mod lease;
mod operator;
mod queue;
mod recovery;
mod row;
mod schema;
mod statement;
mod transaction;
mod watch;
mod writer;

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use sqlx::{SqlStr, SqliteConnection, SqlitePool, sqlite::SqliteRow};
use tokio::time::{Instant, timeout_at};

use self::{
    batch::Encoded,
    error::{busy, is_busy, is_read_only, store_error},
    queue::{Checkout, Line, WriterQueue},
    row::Found,
    statement::Statements,
    writer::Backoff,
};
pub use self::{builder::SqliteStoreBuilder, transaction::SqliteTransaction};
#[cfg(doc)]
use crate::store::StoreErrorKind;
use crate::{
    record::Record,
    store::{CallInfo, Claim, StoreError},
};

type Hook = dyn for<'c> Fn(&'c mut SqliteConnection, &'c CallInfo) -> BoxFuture<'c, Result<(), sqlx::Error>>
    + Send
    + Sync;

/// Keeps records in a SQLite file. Clones share one writer. See the [module](self).
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<Shared>,
}

struct Shared {
    pool: SqlitePool,
    writers: WriterQueue,
    statements: Statements,
    prefix: Box<str>,
    wait_bound: Duration,
    transaction_limit: Duration,
    on_begin: Option<Box<Hook>>,
}

/// What opening for a claim found.
enum Opened {
    /// There is a record, which decides the answer. Nothing is open.
    Found(Record),
    /// SQLite's write lock is held, and no record blocks the claim.
    New(Checkout),
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

    fn deadline(&self) -> Instant {
        Self::after(self.shared.wait_bound)
    }

    /// For statements that a lease depends on: as long as a handler may hold the writer, plus the
    /// wait bound.
    fn lease_deadline(&self) -> Instant {
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
    async fn read(&self, claim: &Claim, deadline: Instant) -> Result<Option<Record>, StoreError> {
        let statement = &self.shared.statements.look_up;
        let rows = self
            .rows("looking up", statement, row::looked_up(claim), deadline)
            .await?;
        rows.first()
            .map(row::decode)
            .transpose()
            .map_err(|error| store_error("looking up", error))
    }

    /// Reads rows, beside any writer.
    async fn rows(
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

    /// Looks up and takes the write lock. If `durable`, the next commit must reach the disk.
    async fn open_for(&self, claim: Option<&Claim>, durable: bool) -> Result<Opened, StoreError> {
        let deadline = self.deadline();
        let checkout = match self.shared.writers.try_take(deadline).await? {
            Some(checkout) => checkout,
            None => {
                if let Some(claim) = claim
                    && let Some(record) = self.read(claim, deadline).await?
                {
                    return Ok(Opened::Found(record));
                }
                self.shared.writers.take(Line::Ordinary, deadline).await?
            }
        };
        self.lock_for(checkout, claim, durable, deadline).await
    }

    async fn lock_for(
        &self,
        mut checkout: Checkout,
        claim: Option<&Claim>,
        durable: bool,
        deadline: Instant,
    ) -> Result<Opened, StoreError> {
        let failed = |error| store_error("claiming", error);
        let mut backoff = Backoff::until(deadline);
        let mut makes_room = false;
        loop {
            // Each time, because another caller may have had the connection meanwhile.
            let level = if durable {
                checkout.writer.make_durable().await
            } else {
                checkout.writer.make_ordinary().await
            };
            level.map_err(failed)?;
            let locked = match claim {
                Some(claim) => {
                    let statements = &self.shared.statements;
                    let begin = if makes_room {
                        &statements.make_room
                    } else {
                        &statements.begin
                    };
                    row::find(&mut checkout.writer.connection, begin, claim).await
                }
                None => checkout.writer.begin().await.map(|()| Found::Nothing),
            };
            match locked {
                Ok(Found::Nothing) => return Ok(Opened::New(checkout)),
                Ok(Found::Record(record)) => {
                    if makes_room {
                        checkout.roll_back_and_give_back().await;
                    } else {
                        checkout.give_back();
                    }
                    return Ok(Opened::Found(record));
                }
                Ok(Found::Remains) => {
                    checkout.writer.roll_back().await.map_err(failed)?;
                    makes_room = true;
                }
                Err(error) => {
                    // Where the lock was refused, nothing was begun, or no more than a look-up. It may
                    // be held by this very call in another process, so the next round looks again.
                    let may_be_open = makes_room || !is_busy(&error);
                    if claim.is_some() && may_be_open && checkout.writer.roll_back().await.is_err()
                    {
                        return Err(failed(error));
                    }
                    if let Err(error) = backoff.retry(error).await {
                        // A handler may have made the connection read-only.
                        if !is_read_only(&error) {
                            checkout.give_back();
                        }
                        return Err(failed(error));
                    }
                    checkout = self
                        .shared
                        .writers
                        .let_leases_pass(checkout, deadline)
                        .await?;
                }
            }
        }
    }

    /// Takes the write lock for a statement that depends on no claim.
    async fn lock(&self, line: Line, durable: bool) -> Result<Checkout, StoreError> {
        let deadline = self.deadline();
        let checkout = self.shared.writers.take(line, deadline).await?;
        match self.lock_for(checkout, None, durable, deadline).await? {
            Opened::New(checkout) => Ok(checkout),
            Opened::Found(_) => unreachable!("without a claim nothing is looked up"),
        }
    }

    /// Runs one statement as a transaction of its own.
    async fn write(
        &self,
        doing: &str,
        line: Line,
        statement: &SqlStr,
        arguments: Encoded,
    ) -> Result<Vec<i64>, StoreError> {
        let deadline = match line {
            Line::Lease => self.lease_deadline(),
            Line::Ordinary => self.deadline(),
        };
        let mut checkout = self.shared.writers.take(line, deadline).await?;
        let written = async {
            let arguments = arguments.map_err(sqlx::Error::Encode)?;
            let mut backoff = match line {
                Line::Lease => Backoff::eager(deadline),
                Line::Ordinary => Backoff::until(deadline),
            };
            checkout.writer.make_ordinary().await?;
            loop {
                let arguments = Ok(arguments.clone());
                let connection = &mut checkout.writer.connection;
                let batch = batch::run(connection, statement, arguments, 1).await;
                match batch.done {
                    Ok(()) => return Ok(batch.values),
                    Err(error) => backoff.retry(error).await?,
                }
            }
        };
        match written.await {
            Ok(rows) => {
                checkout.give_back();
                Ok(rows)
            }
            Err(error) => {
                // It did not get the lock, so it did nothing.
                if is_busy(&error) {
                    checkout.give_back();
                }
                Err(store_error(doing, error))
            }
        }
    }

    /// Draws the next fencing token in the open transaction.
    async fn draw_token(&self, connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
        let tokens: Vec<i64> = sqlx::query_scalar(self.shared.statements.next_token.clone())
            .fetch_all(connection)
            .await?;
        tokens.first().copied().ok_or(sqlx::Error::RowNotFound)
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

fn micros(duration: Duration) -> i64 {
    // About thirty thousand years, so that sums of three still fit.
    const MOST: u128 = 1_000_000_000_000_000_000;
    i64::try_from(duration.as_micros().min(MOST)).unwrap_or(i64::MAX / 8)
}
