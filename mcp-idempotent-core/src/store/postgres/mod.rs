//! Postgres: record and effect in one transaction, shared by any number of processes.
//!
//! # How a claim goes
//!
//! 1. One round trip opens the transaction, tries the advisory locks of this call and of its key,
//!    and looks for a record. What is found is answered; nothing ever waits for a lock.
//! 2. The set-up hook, then the handler, run on that connection.
//! 3. One round trip checks that the transaction is still the one that was opened, inserts the
//!    finished record and commits.
//!
//! Correctness rests on the primary key and on that one transaction: the record and the handler's
//! writes commit together, and only one record per key can. The advisory locks only keep handlers
//! from running for nothing.
//!
//! # What the database needs
//!
//! Postgres 12 or later. [`PostgresStore::migrate`] creates the tables;
//! [`PostgresStore::migration_sql`] gives the SQL to whoever may. The role that calls (and every
//! role that the [set-up hook](PostgresStoreBuilder::with_on_begin) switches to) needs, for the
//! default schema:
//!
//! ```sql
//! GRANT USAGE ON SCHEMA mcp_idempotent TO app;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON mcp_idempotent.records TO app;
//! GRANT USAGE ON SEQUENCE mcp_idempotent.tokens TO app;
//! GRANT SELECT ON mcp_idempotent.migrations TO app; -- for `verify`
//! ```
//!
//! Who only lists and shows records needs `USAGE` on the schema and `SELECT` on `records`; who
//! resolves them needs `UPDATE` on `records` and `USAGE` on the sequence `tokens` as well:
//!
//! ```sql
//! GRANT USAGE ON SCHEMA mcp_idempotent TO operator;
//! GRANT SELECT, UPDATE ON mcp_idempotent.records TO operator;
//! GRANT USAGE ON SEQUENCE mcp_idempotent.tokens TO operator;
//! ```
//!
//! # The savepoint
//!
//! A handler runs under a savepoint of ours, which the opening round trip sets last. It lives exactly
//! as long as the transaction, whoever ends it and however. The finishing round trip begins with its
//! `RELEASE`, which fails if the handler has ended the transaction; and as long as a `ROLLBACK TO` it
//! succeeds, nothing was committed. For the handler the rules of subtransactions hold:
//!
//! - A call that writes uses up two transaction numbers, its own and the savepoint's.
//! - `SET TRANSACTION READ ONLY` lasts until the handler returns. A result above
//!   [`PostgresStore::INLINE_RESULT_BYTES`] cannot be recorded after it: the call is rolled back.
//! - `pg_export_snapshot` is refused.
//! - Of its own savepoints a handler may use any number, by any name; each counts towards the 64
//!   open subtransactions that a session announces to the others cheaply.
//!
//! # What a handler must not do with the connection
//!
//! A nested `begin` is a savepoint and harmless. `COMMIT`, `ROLLBACK`, `BEGIN` or `PREPARE
//! TRANSACTION` as raw SQL is noticed at the end and leaves the key in doubt. The exception: where a
//! handler commits and its session is lost before it returns, nothing is left that would tell, and
//! the call is answered as not committed. `DEALLOCATE ALL` takes our prepared statements away; the
//! call is then rolled back. `RESET ALL` removes our idle timeout for the transaction, no more; it
//! does not count as ending it.
//!
//! A statement that the handler gave up (a dropped future) is waited for before the transaction is
//! finished. Where it fails, the transaction is aborted, and so is the call.
//!
//! # What is believed
//!
//! An error of a statement that somebody gave up is read before we send anything, so it is never
//! taken for an answer of ours. Once a COMMIT was sent, no error says by its code that nothing was
//! committed: a pooler may have made it up. What says so is the transaction itself, when its own
//! connection can still roll it back; else a look at the record under the key's lock, on that
//! connection or a new one. A call that leaves no record is of unknown outcome then, unless the
//! server says that its transaction was rolled back.
//!
//! # Where results can show
//!
//! A result below [`PostgresStore::INLINE_RESULT_BYTES`], and in lease mode every result, travels in
//! the text of a statement, so a server that logs statements, and sqlx at its debug level, log it.
//!
//! # A transaction under a lease
//!
//! A lease that is completed together with a transaction ([`End::Complete`]) is guarded by one
//! UPDATE in that transaction. Above READ COMMITTED a renewal of the lease that was committed after
//! the transaction's first statement makes that UPDATE fail to serialise: nothing is committed, and
//! the answer is [`Ended::Aborted`]. Begin such a transaction after the outside call and keep it
//! short, or leave it at READ COMMITTED.

// A first call passes `claim` (its batch is run by `tries`) and `end`. Both write a `batch`, whose
// statements are in `sql/`, for a `connection` of the `store`. All else is for what goes wrong, for
// lease mode, and for operators.
mod batch;
mod builder;
mod claim;
mod connection;
mod end;
mod error;
mod fate;
mod lease;
mod literal;
mod lock;
mod look_up;
mod operator;
mod recover;
mod schema;
mod schema_name;
mod statement;
mod store;
mod sweep;
mod tries;

use std::time::Duration;

use sqlx::PgConnection;

pub use self::{
    builder::PostgresStoreBuilder,
    connection::PgTransaction,
    store::{Isolation, OnBegin, PostgresStore},
};
use super::{
    CallInfo, Claim, Claimed, Completion, End, Ended, Inspected, Lease, LeaseEnd, Reach, Store,
    StoreError, TransactionStore,
};
use crate::record::Record;

impl Store for PostgresStore {
    fn reach(&self) -> Reach {
        Reach::Network
    }

    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        look_up::look_up(self, claim).await
    }

    async fn inspect(&self, claim: &Claim) -> Result<Inspected, StoreError> {
        look_up::inspect(self, claim).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        lease::claim(self, claim).await
    }

    async fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> Result<LeaseEnd, StoreError> {
        lease::complete(self, lease, &completion).await
    }

    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        lease::take_over(self, claim, token).await
    }

    async fn renew(&self, lease: &Lease, period: Duration) -> Result<LeaseEnd, StoreError> {
        lease::renew(self, lease, period).await
    }

    async fn release(&self, lease: &Lease, keep_origin: Duration) -> Result<LeaseEnd, StoreError> {
        lease::release(self, lease, keep_origin).await
    }

    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        lease::abandon(self, lease).await
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        sweep::sweep(self, limit).await
    }
}

// The trait's own message names every store.
#[diagnostic::do_not_recommend]
impl TransactionStore for PostgresStore {
    type Connection = PgConnection;
    type Transaction = PgTransaction;

    async fn begin(
        &self,
        call: &CallInfo,
        claim: Option<&Claim>,
    ) -> Result<Claimed<PgTransaction>, StoreError> {
        claim::begin(self, call, claim).await
    }

    async fn end(&self, transaction: PgTransaction, claim: Option<&Claim>, end: End) -> Ended {
        end::end(self, transaction, claim, end).await
    }
}
