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
//! - **A lease that has ended is looked at twice.** Its result may have been written in time, and a
//!   slow disk may still hold up the commit, which readers do not see. So before a call is
//!   reported in doubt for that reason, its record is read again under the write lock. If the
//!   writers in front take longer than the wait bound, the call is reported as in progress.
//! - **One extra connection.** Handlers write on a connection that the store takes out of the pool
//!   and keeps. So a pool of `n` has `n + 1` open connections, and a handler that reads through the
//!   pool cannot starve itself. Settings that the pool makes in `after_connect` apply to this
//!   connection too.
//! - **Only the store ends the transaction.** A nested `begin()` is a savepoint. A commit hook
//!   refuses COMMIT by raw SQL, and a rollback hook notices ROLLBACK by raw SQL. The call is then
//!   answered as outcome unknown, and its key is in doubt. The store replaces any commit and
//!   rollback hooks of yours on that connection, and a handler must not set its own.
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
mod claim_lease;
mod claim_transaction;
mod end;
mod error;
mod lease;
mod lock;
mod look_up;
mod operator;
mod queue;
mod recover;
mod row;
mod schema;
mod statement;
mod store;
mod sweep;
mod watch;
mod writer;

use std::time::Duration;

use sqlx::SqliteConnection;

pub use self::{
    builder::SqliteStoreBuilder, claim_transaction::SqliteTransaction, store::SqliteStore,
};
#[cfg(doc)]
use crate::store::StoreErrorKind;
use crate::{
    record::Record,
    store::{
        CallInfo, Claim, Claimed, Completion, End, Ended, Inspected, Lease, LeaseEnd, Reach, Store,
        StoreError, TransactionStore,
    },
};

impl Store for SqliteStore {
    /// The processes of one machine can share a file.
    fn reach(&self) -> Reach {
        Reach::Machine
    }

    fn transaction_limit(&self) -> Option<Duration> {
        Some(self.shared.transaction_limit)
    }

    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        look_up::look_up(self, claim).await
    }

    async fn inspect(&self, claim: &Claim) -> Result<Inspected, StoreError> {
        look_up::inspect(self, claim).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        claim_lease::claim(self, claim).await
    }

    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        claim_lease::take_over(self, claim, token).await
    }

    async fn renew(&self, lease: &Lease, period: Duration) -> Result<LeaseEnd, StoreError> {
        lease::renew(self, lease, period).await
    }

    async fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> Result<LeaseEnd, StoreError> {
        lease::complete(self, lease, &completion).await
    }

    async fn release(&self, lease: &Lease, keep_origin: Duration) -> Result<LeaseEnd, StoreError> {
        lease::release(self, lease, keep_origin).await
    }

    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        lease::abandon(self, lease).await
    }

    async fn has_unsettled(&self, age: Duration) -> Result<bool, StoreError> {
        lease::has_unsettled(self, age).await
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        sweep::sweep(self, limit).await
    }
}

// The trait's own message names every store.
#[diagnostic::do_not_recommend]
impl TransactionStore for SqliteStore {
    type Connection = SqliteConnection;
    type Transaction = SqliteTransaction;

    async fn begin(
        &self,
        call: &CallInfo,
        claim: Option<&Claim>,
    ) -> Result<Claimed<SqliteTransaction>, StoreError> {
        claim_transaction::begin(self, call, claim).await
    }

    async fn end(&self, transaction: SqliteTransaction, claim: Option<&Claim>, end: End) -> Ended {
        end::end(self, transaction, claim, end).await
    }
}
