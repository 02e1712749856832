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

mod begin;
mod builder;
mod connection;
mod end;
mod error;
mod inspect;
mod lease;
mod literal;
mod lock;
mod mark;
mod operator;
mod record;
mod recovery;
mod schema;
mod statement;
mod stopped;
mod sweep;
mod transaction;

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sqlx::{PgConnection, PgPool};

pub use self::{
    builder::{Isolation, OnBegin, PostgresStoreBuilder},
    transaction::PgTransaction,
};
use self::{
    connection::Leased,
    lock::Locks,
    mark::Mark,
    schema::SchemaName,
    statement::{Argument, Statements},
};
use super::{
    CallInfo, Claim, Claimed, Completion, End, Ended, Inspected, Lease, LeaseEnd, Reach, Store,
    StoreError, StoreErrorKind, TransactionStore,
};
use crate::{policy::OnExpired, record::Record};

/// Keeps records in Postgres; for both modes. Cheap to clone. See the [module](self).
///
/// ```no_run
/// use mcp_idempotent_core::store::postgres::PostgresStore;
///
/// # async fn start(pool: sqlx::PgPool) -> Result<(), mcp_idempotent_core::StoreError> {
/// let store = PostgresStore::builder(pool).with_schema("billing_keys").build()?;
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    pool: PgPool,
    schema: SchemaName,
    isolation: Option<Isolation>,
    lookup_first: bool,
    acquire_timeout: Duration,
    recovery_timeout: Duration,
    lock_timeout: Duration,
    on_begin: Option<OnBegin>,
    statements: Statements,
    locks: Locks,
    savepoint: String,
    /// Prepared names are in use; cleared for good when they turn out not to last.
    prepared: AtomicBool,
    /// A prepared name was seen to outlive the transaction that it was made before, so that
    /// statements of sqlx's may be relied on too.
    names_last: AtomicBool,
    /// Cleared for good where the pool keeps no statements of sqlx's.
    bound: AtomicBool,
    /// A transaction was seen to be serializable.
    serializable: AtomicBool,
}

impl PostgresStore {
    /// How long a claim waits for a connection of the pool: 5 seconds.
    pub const DEFAULT_ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
    /// How long a handler may leave its transaction idle before the server ends the session:
    /// 60 seconds.
    pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
    /// How long is spent on finding out what became of a commit whose answer was lost:
    /// 10 seconds.
    pub const DEFAULT_RECOVERY_TIMEOUT: Duration = Duration::from_secs(10);
    /// How long a statement of lease mode, or of an operator, waits for a lock that somebody else
    /// holds on our table or on a record: 5 seconds.
    pub const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(5);
    /// Results up to this size travel in the statement that commits; larger ones are bound, for
    /// one more round trip.
    pub const INLINE_RESULT_BYTES: usize = 4096;

    /// A store with the default settings. Nothing is asked of the database yet.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        PostgresStoreBuilder::new(pool).build_with(SchemaName::default())
    }

    /// Settings first.
    pub fn builder(pool: PgPool) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(pool)
    }

    /// The SQL that [`migrate`](Self::migrate) runs, for a schema of this name, for those who
    /// apply it by hand. It may be run again.
    ///
    /// # Errors
    ///
    /// The name is not a plain identifier.
    pub fn migration_sql(schema: &str) -> Result<String, StoreError> {
        schema::migration_sql(schema)
    }

    /// A connection of the pool, within the bound, under the pool's own settings.
    async fn connection(&self) -> Result<Leased, StoreError> {
        let bound = self.inner.acquire_timeout;
        match tokio::time::timeout(bound, self.inner.pool.acquire()).await {
            Ok(Ok(connection)) => Ok(Leased::new(connection)),
            Ok(Err(error)) => Err(self.error("no connection to the database", error)),
            Err(_) => Err(StoreError::new(
                StoreErrorKind::Unavailable,
                format!(
                    "no connection came free within {bound:?}: the pool is smaller than the number of calls that run at once, or the database is away"
                ),
            )),
        }
    }

    fn error(&self, doing: &str, error: sqlx::Error) -> StoreError {
        error::store_error(doing, self.inner.schema.as_str(), error)
    }

    fn prepared(&self) -> bool {
        self.inner.prepared.load(Ordering::Relaxed)
    }

    fn is_serializable(&self) -> bool {
        match self.inner.isolation {
            Some(isolation) => isolation == Isolation::Serializable,
            None => self.inner.serializable.load(Ordering::Relaxed),
        }
    }

    /// A call of one of our statements, as this store calls them now.
    fn call(&self, name: statement::Name, arguments: &[String]) -> String {
        self.inner.statements.call(self.prepared(), name, arguments)
    }

    /// Adds a call of one of our statements, as this store calls them now.
    fn push(&self, batch: &mut String, name: statement::Name, arguments: &[Argument<'_>]) {
        self.inner
            .statements
            .push(batch, self.prepared(), name, arguments);
    }

    /// Tries the locks of `claim`, and with `look_up` refuses a serializable transaction.
    fn open(&self, claim: &Claim, look_up: bool) -> String {
        let mut sql = String::new();
        self.push_open(&mut sql, claim, look_up);
        sql
    }

    fn push_open(&self, batch: &mut String, claim: &Claim, look_up: bool) {
        // With a level of ours in BEGIN there is nothing to find out.
        let name = if look_up && self.inner.isolation.is_none() {
            statement::Name::OpenUnlessSerializable
        } else {
            statement::Name::Open
        };
        let locks = &self.inner.locks;
        self.push(
            batch,
            name,
            &[
                Argument::Integer(locks.of_call(claim)),
                Argument::Integer(locks.of_key(claim)),
            ],
        );
    }

    /// Begins a short transaction of our own, with a bound on every wait for a lock.
    fn short_transaction(&self) -> String {
        format!("BEGIN ISOLATION LEVEL READ COMMITTED;{}", self.lock_bound())
    }

    fn lock_bound(&self) -> String {
        let millis = i32::try_from(self.inner.lock_timeout.as_millis()).unwrap_or(i32::MAX);
        format!("SET LOCAL lock_timeout = {};", millis.max(1))
    }
}

/// How much of a tool's name is kept, in characters.
const TOOL_LENGTH: usize = 255;

/// `id` and whether an expired record counts, as two arguments.
fn id_arguments(claim: &Claim) -> [String; 2] {
    [
        statement::bytes(claim.id.as_bytes()),
        (claim.on_expired == OnExpired::Refuse).to_string(),
    ]
}

/// The tool's name and the key's prefix, as they are stored.
fn labels(claim: &Claim) -> (Cow<'_, str>, Option<Cow<'_, str>>) {
    let prefix = claim
        .key_prefix
        .as_deref()
        .map(|prefix| statement::plain(prefix, crate::key::VISIBLE_PREFIX));
    (statement::plain(&claim.call.tool, TOOL_LENGTH), prefix)
}

/// The tool's name and the key's prefix as two arguments.
fn label_arguments(claim: &Claim) -> [String; 2] {
    let (tool, prefix) = labels(claim);
    [
        statement::text(&tool),
        statement::text_or_null(prefix.as_deref()),
    ]
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("schema", &self.inner.schema.as_str())
            .field("isolation", &self.inner.isolation)
            .field("lookup_first", &self.inner.lookup_first)
            .finish_non_exhaustive()
    }
}

impl Store for PostgresStore {
    fn reach(&self) -> Reach {
        Reach::Network
    }

    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        self.look_up_record(claim).await
    }

    async fn inspect(&self, claim: &Claim) -> Result<Inspected, StoreError> {
        self.inspect_key(claim).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        self.claim_lease(claim).await
    }

    async fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> Result<LeaseEnd, StoreError> {
        self.complete_lease(lease, &completion).await
    }

    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        self.take_lease_over(claim, token).await
    }

    async fn renew(&self, lease: &Lease, period: Duration) -> Result<LeaseEnd, StoreError> {
        self.renew_lease(lease, period).await
    }

    async fn release(&self, lease: &Lease, keep_origin: Duration) -> Result<LeaseEnd, StoreError> {
        self.release_lease(lease, keep_origin).await
    }

    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        self.abandon_lease(lease).await
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        self.sweep_expired(limit).await
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
        self.begin_transaction(call, claim).await
    }

    async fn end(&self, transaction: PgTransaction, claim: Option<&Claim>, end: End) -> Ended {
        self.end_transaction(transaction, claim, end).await
    }
}
