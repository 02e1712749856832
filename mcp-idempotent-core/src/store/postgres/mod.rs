//! Postgres: record and effect in one transaction, shared by any number of processes.
//!
//! # How a claim goes
//!
//! 1. One round trip opens the transaction, tries the advisory locks of this call and of its key,
//!    and looks for a record. If it finds one, that is the answer. It never waits for a lock.
//! 2. The set-up hook, then the handler, run on that connection.
//! 3. One round trip checks that the transaction is still the one that was opened, inserts the
//!    finished record and commits.
//!
//! Correctness rests on the primary key and on that one transaction: the record and the handler's
//! writes commit together, and only one record per key can commit. The advisory locks only spare
//! handlers from running in vain.
//!
//! # What the database needs
//!
//! Postgres 13 or later. [`PostgresStore::migrate`] creates the tables;
//! [`PostgresStore::migration_sql`] returns the SQL for somebody who has the rights. With the
//! default schema, the server's role (and every role that the
//! [set-up hook](PostgresStoreBuilder::with_on_begin) switches to) needs:
//!
//! ```sql
//! GRANT USAGE ON SCHEMA mcp_idempotent TO app;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON mcp_idempotent.records TO app;
//! GRANT USAGE ON SEQUENCE mcp_idempotent.tokens TO app;
//! GRANT SELECT ON mcp_idempotent.migrations TO app; -- for `verify`
//! ```
//!
//! To list and show records, an operator needs `USAGE` on the schema and `SELECT` on `records`. To
//! resolve them, also `UPDATE` on `records` and `USAGE` on the sequence `tokens`:
//!
//! ```sql
//! GRANT USAGE ON SCHEMA mcp_idempotent TO operator;
//! GRANT SELECT, UPDATE ON mcp_idempotent.records TO operator;
//! GRANT USAGE ON SEQUENCE mcp_idempotent.tokens TO operator;
//! ```
//!
//! # The savepoint
//!
//! A handler runs under a savepoint of ours, which the opening round trip sets last. It lives
//! exactly as long as the transaction, no matter who ends it, or how. The finishing round trip
//! begins with its `RELEASE`, which fails if the handler has ended the transaction. As long as a
//! `ROLLBACK TO` it succeeds, nothing was committed. So the handler runs in a subtransaction:
//!
//! - A call that writes uses up two transaction numbers, its own and the savepoint's.
//! - `SET TRANSACTION READ ONLY` lasts until the handler returns. A result above
//!   [`PostgresStore::INLINE_RESULT_BYTES`] cannot be recorded after it: the call is rolled back.
//! - `pg_export_snapshot` is refused.
//! - A handler may use any number of savepoints of its own, with any names. Each counts towards the
//!   64 open subtransactions that Postgres tracks cheaply for a session.
//!
//! # What a handler must not do with the connection
//!
//! A nested `begin` is a savepoint and harmless. `COMMIT`, `ROLLBACK`, `BEGIN` or
//! `PREPARE TRANSACTION` as raw SQL is noticed at the end, and leaves the key in doubt. There is
//! one exception: if a handler commits and its session is lost before it returns, nothing is left
//! that could tell, and the call is answered as not committed. `DEALLOCATE ALL` removes our
//! prepared statements, and the call is then rolled back. `RESET ALL` only removes our idle timeout
//! for the transaction; it does not count as ending it.
//!
//! If the handler abandoned a statement (dropped its future), the store waits for that statement
//! before it finishes the transaction. If the statement fails, the transaction is aborted, and so
//! is the call.
//!
//! # What is believed
//!
//! The error of an abandoned statement is read before we send anything, so it is never taken for an
//! answer to us. Once a COMMIT has been sent, no error code proves that nothing was committed,
//! because a pooler may have made it up. There are two proofs: that the transaction can still be
//! rolled back on its own connection, or what the record shows under the key's lock, read on that
//! connection or a new one. For a call that leaves no record, the outcome is then unknown, unless
//! the server says that its transaction was rolled back.
//!
//! # Where results and scopes can show
//!
//! The application and scope of a call are part of a statement's text. So is a result of at most
//! [`PostgresStore::INLINE_RESULT_BYTES`], and every result in lease mode. They are logged by a
//! server that logs statements, and by sqlx at its debug level.
//!
//! # A transaction of another driver
//!
//! [`ForeignTransactions::completion`] gives the statement that
//! completes a lease to whoever has a transaction on this database: tokio-postgres, diesel-async, another
//! version of sqlx. The role that runs it needs the grants above. It makes the transaction commit durably, like
//! every completion, unless the store has
//! [asynchronous completions](PostgresStoreBuilder::with_asynchronous_completions). Above READ COMMITTED, the
//! next heading holds for it, too: the statement then fails with a serialization failure.
//!
//! # A transaction under a lease
//!
//! A lease that is completed together with a transaction ([`End::Complete`]) is guarded by one
//! UPDATE in that transaction. Above READ COMMITTED, that UPDATE cannot be serialised if a renewal
//! of the lease was committed after the transaction's first statement: nothing is committed, and
//! the answer is [`Ended::Aborted`]. Begin such a transaction after the outside call and keep it
//! short, or leave it at READ COMMITTED.

// A first call passes `claim_transaction` (whose batch `tries` runs) and `end`. Both write a
// `batch`, whose statements are in `sql/`, for a `connection` of the `store`. `statement`,
// `literal`, `lock`, `own`, `bound` and `watch` serve them. All other files are for settings,
// failures, lease mode and operators.
mod batch;
mod bound;
mod builder;
mod claim_lease;
mod claim_transaction;
mod connection;
mod elsewhere;
mod end;
mod error;
mod fate;
mod lease;
mod literal;
mod lock;
mod look_up;
mod operator;
mod own;
mod pieces;
#[cfg(test)]
mod qualified;
mod recover;
mod reserved;
mod schema;
mod schema_name;
mod statement;
mod store;
mod sweep;
mod tries;
mod verify;
mod watch;

use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::PgConnection;

pub use self::{
    builder::PostgresStoreBuilder,
    connection::PgTransaction,
    store::{Isolation, OnBegin, PostgresStore},
};
use super::{
    CallInfo, Claim, Claimed, Completion, End, Ended, ForeignTransactions, Inspected, Lease,
    LeaseEnd, Reach, Store, StoreError, TransactionStore,
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
        claim_lease::claim(self, claim).await
    }

    async fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> Result<LeaseEnd, StoreError> {
        lease::complete(self, lease, &completion).await
    }

    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        claim_lease::take_over(self, claim, token).await
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

    fn foreign_transactions(&self) -> Option<&dyn ForeignTransactions> {
        Some(self)
    }

    async fn has_unsettled(&self, age: Duration) -> Result<bool, StoreError> {
        lease::has_unsettled(self, age).await
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        sweep::sweep(self, limit, sweep::Extent::Whole).await
    }

    async fn sweep_part(&self, limit: u32) -> Result<u64, StoreError> {
        sweep::sweep(self, limit, sweep::Extent::Part).await
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
        claim_transaction::begin(self, call, claim).await
    }

    fn session_over(&self, transaction: &PgTransaction) -> Option<BoxFuture<'static, ()>> {
        let lock = transaction.lock;
        Some(Box::pin(watch::until_over(self.clone(), lock)))
    }

    async fn end(&self, transaction: PgTransaction, claim: Option<&Claim>, end: End) -> Ended {
        end::end(self, transaction, claim, end).await
    }
}
