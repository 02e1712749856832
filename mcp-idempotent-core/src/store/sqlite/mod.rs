//! Records in a SQLite file: the embedded default, in both modes.
//!
//! ```no_run
//! use mcp_idempotent_core::store::sqlite::SqliteStore;
//!
//! # async fn open() -> Result<(), mcp_idempotent_core::StoreError> {
//! // A pool of its own, in WAL mode, with the tables made:
//! let store = SqliteStore::open("data.db").await?;
//! // Handlers are given a `&mut sqlx::SqliteConnection`; other code reads through the pool.
//! let pool = store.pool();
//! # let _ = pool; Ok(())
//! # }
//! ```
//!
//! # What to know
//!
//! - **One writer.** SQLite lets one transaction write at a time, and a handler in transaction
//!   mode holds it until it ends. Others queue, in this process first come first served, but for
//!   what a running lease depends on, which comes first; past
//!   [the wait bound](SqliteStoreBuilder::with_wait_bound) they are answered
//!   [`Busy`](StoreErrorKind::Busy): not committed, retry with the same key. `database is locked`
//!   is never an answer. Replays, look-ups and an operator's listings go on beside a writer and
//!   take no write lock.
//! - **One connection more.** Handlers write on a connection that the store takes out of the pool
//!   and keeps, so a pool of `n` has `n + 1` connections open, and a handler that reads through
//!   the pool cannot starve itself. Settings that the pool makes in `after_connect` apply to it.
//! - **The transaction is ours to end.** A nested `begin()` is a savepoint. COMMIT by raw SQL is
//!   refused by a commit hook, ROLLBACK by raw SQL is noticed by a rollback hook; the call is then
//!   answered as outcome unknown and its key is in doubt. Commit and rollback hooks of the
//!   author's are replaced on that connection, and a handler must not set its own.
//! - **A rollback that the handler caused looks like one that SQLite made** (`INSERT OR ROLLBACK`,
//!   `RAISE(ROLLBACK)`, a full disk). Either way nothing was committed. A handler that goes on and
//!   answers with a success is answered as outcome unknown; one that answers with an error is
//!   answered as not committed.
//! - **Durability.** With `synchronous = FULL` a committed call survives a power loss. With
//!   `NORMAL` a power loss may take the last commits, record and effect together: safe for
//!   effects in this file, unsafe for outside ones; claims of lease mode, takeovers and
//!   resolutions are therefore always committed with `FULL`. The clock is the machine's, through
//!   SQLite.
//! - **A file.** Databases in memory are refused, and so are journal modes other than WAL.
//! - **A late result is fenced.** In lease mode an attempt that finishes after its lease ran out
//!   cannot record its result, even if nobody has touched the record since: it was in doubt from
//!   that moment, and somebody may have been told so.

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

/// The answer to a claim so far.
enum Opened {
    /// A record decides; nothing is open.
    Found(Record),
    /// SQLite's write lock is held, and no record stands in the way.
    New(Checkout),
}

impl SqliteStore {
    /// The pool: the author's other reads and writes go through it.
    #[must_use]
    pub fn pool(&self) -> &SqlitePool {
        &self.shared.pool
    }

    /// Waits for a running transaction, then closes the store's writing connection and the pool.
    pub async fn close(&self) {
        self.shared.writers.close().await;
        self.shared.pool.close().await;
    }

    fn deadline(&self) -> Instant {
        Self::after(self.shared.wait_bound)
    }

    /// For what a lease depends on: as long as a handler may hold the writer, and then the bound.
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

    /// Looks up beside whoever writes.
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

    /// Reads beside whoever writes.
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

    /// Looks up and takes the write lock. `durable`: what is committed next must be on the disk.
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
        loop {
            // Each time: another may have had the connection meanwhile.
            let level = if durable {
                checkout.writer.make_durable().await
            } else {
                checkout.writer.make_ordinary().await
            };
            level.map_err(failed)?;
            let locked = match claim {
                Some(claim) => {
                    let begin = &self.shared.statements.begin;
                    row::find(&mut checkout.writer.connection, begin, claim).await
                }
                None => checkout.writer.begin().await.map(|()| None),
            };
            match locked {
                Ok(None) => return Ok(Opened::New(checkout)),
                Ok(Some(record)) => {
                    checkout.roll_back_and_give_back().await;
                    return Ok(Opened::Found(record));
                }
                Err(error) => {
                    // What was begun before the lock was refused is a look-up; whoever holds the
                    // lock may be this very call, so the next try looks again.
                    if claim.is_some() && checkout.writer.roll_back().await.is_err() {
                        return Err(failed(error));
                    }
                    if let Err(error) = backoff.retry(error).await {
                        // A handler may have made the connection one that only reads.
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

    /// Takes the write lock for what depends on no claim.
    async fn lock(&self, line: Line, durable: bool) -> Result<Checkout, StoreError> {
        let deadline = self.deadline();
        let checkout = self.shared.writers.take(line, deadline).await?;
        match self.lock_for(checkout, None, durable, deadline).await? {
            Opened::New(checkout) => Ok(checkout),
            Opened::Found(_) => unreachable!("without a claim nothing is looked up"),
        }
    }

    /// One statement that is a transaction of its own.
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
                    Ok(()) => return Ok(batch.rows),
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
                // Refused the lock, it did nothing.
                if is_busy(&error) {
                    checkout.give_back();
                }
                Err(store_error(doing, error))
            }
        }
    }

    /// Draws the next fencing token, in the transaction that is open.
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
    // Thirty thousand years: sums of three still fit.
    const MOST: u128 = 1_000_000_000_000_000_000;
    i64::try_from(duration.as_micros().min(MOST)).unwrap_or(i64::MAX / 8)
}
