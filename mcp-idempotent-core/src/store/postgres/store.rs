//! The store: its settings, what it has learned about the database, and its connections.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use sqlx::{Connection as _, PgConnection, PgPool};

use super::{
    bound::within, connection::Session, error, lock::Locks, reserved::Reserved,
    schema_name::SchemaName, statement::Statements,
};
use crate::store::{CallInfo, StoreError, StoreErrorKind};

/// Keeps records in Postgres; for both modes. Cheap to clone. See the [module](super).
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
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) pool: PgPool,
    pub(super) reserved: Reserved,
    pub(super) schema: SchemaName,
    pub(super) isolation: Option<Isolation>,
    pub(super) lookup_first: bool,
    pub(super) acquire_timeout: Duration,
    pub(super) answer_timeout: Duration,
    pub(super) maintenance_timeout: Duration,
    pub(super) recovery_timeout: Duration,
    pub(super) session_checked_every: Duration,
    pub(super) asynchronous_completions: bool,
    pub(super) on_begin: Option<OnBegin>,
    pub(super) statements: Statements,
    pub(super) locks: Locks,
    /// Whether prepared names are used. Cleared for good if they turn out not to last.
    pub(super) prepared: AtomicBool,
    /// A transaction was seen to be serializable.
    pub(super) serializable: AtomicBool,
}

/// The isolation level of a handler's transaction. It is part of BEGIN, because Postgres does not allow
/// a change after the first statement (in the set-up hook, for instance).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "SQL has exactly these")]
pub enum Isolation {
    /// READ COMMITTED.
    ReadCommitted,
    /// REPEATABLE READ.
    RepeatableRead,
    /// SERIALIZABLE. Records are then looked up before the transaction, which costs a round trip.
    /// Inside it, the look-up would make unrelated calls fail to serialise.
    Serializable,
}

/// Sets a transaction up, after the claim and before the handler.
pub type OnBegin = Arc<
    dyn for<'c> Fn(&'c mut PgConnection, &'c CallInfo) -> BoxFuture<'c, Result<(), sqlx::Error>>
        + Send
        + Sync,
>;

impl PostgresStore {
    /// How long a claim waits for a connection of the pool: 5 seconds.
    pub const DEFAULT_ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
    /// How long the store waits for the answer to one of its own round trips before the connection
    /// counts as lost: 10 seconds.
    pub const DEFAULT_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
    /// The same for statements that may take long, those of an operator, a sweep, a migration or a
    /// check of the tables: 60 seconds.
    pub const DEFAULT_MAINTENANCE_TIMEOUT: Duration = Duration::from_secs(60);
    /// How long a handler may leave its transaction idle before the server ends the session:
    /// 60 seconds.
    pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
    /// How long the store tries to find out what became of a commit whose answer was lost:
    /// 10 seconds.
    pub const DEFAULT_RECOVERY_TIMEOUT: Duration = Duration::from_secs(10);
    /// How long a statement of lease mode, or of an operator, waits for a lock that somebody else
    /// holds on our table or on a record: 5 seconds.
    pub const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(5);
    /// Results up to this size are part of the statement that commits. Larger ones are bound, which
    /// takes two more round trips.
    pub const INLINE_RESULT_BYTES: usize = 4096;

    /// How often the store looks whether the session of a running handler still lives: every 10 seconds,
    /// or after each idle timeout if that is shorter.
    pub const SESSION_CHECKED_EVERY: Duration = Duration::from_secs(10);

    /// Takes the connection beside the pool, or one from the pool if there can be none.
    pub(super) async fn reserved_session(&self) -> Result<Session, StoreError> {
        let Inner { pool, reserved, .. } = &*self.inner;
        match reserved.take(pool, self.inner.acquire_timeout).await {
            Ok(taken) => Ok(Session::reserved(taken, self.inner.answer_timeout)),
            Err(error) => {
                tracing::debug!(%error, "no connection beside the pool");
                self.session().await
            }
        }
    }

    /// Takes a connection from the pool, within the time limit. The pool's own settings apply.
    pub(super) async fn session(&self) -> Result<Session, StoreError> {
        let bound = self.inner.acquire_timeout;
        match tokio::time::timeout(bound, self.inner.pool.acquire()).await {
            Ok(Ok(connection)) => Ok(Session::new(connection, self.inner.answer_timeout)),
            Ok(Err(error)) => Err(self.error("no connection to the database", error)),
            Err(_) => Err(self.no_connection().await),
        }
    }

    /// Why no connection came free. The pool does not say, so the database is asked.
    async fn no_connection(&self) -> StoreError {
        /// The error is late enough already.
        const ASKING: Duration = Duration::from_secs(1);
        let Inner {
            pool,
            acquire_timeout: bound,
            ..
        } = &*self.inner;
        let unavailable = |why: String| {
            let said = format!("no connection came free within {bound:?}: {why}");
            StoreError::new(StoreErrorKind::Unavailable, said)
        };
        let limit = pool.options().get_max_connections();
        if pool.size() >= limit {
            return unavailable(format!(
                "the pool has {limit}, which is less than the number of calls that run at once"
            ));
        }
        let connect = pool.connect_options();
        match within(ASKING.min(*bound), PgConnection::connect_with(&connect)).await {
            Ok(_) => unavailable("the database was away".to_owned()),
            Err(error) => {
                unavailable("the database does not accept one".to_owned()).with_source(error)
            }
        }
    }

    pub(super) fn error(&self, doing: &str, error: sqlx::Error) -> StoreError {
        error::store_error(doing, self.inner.schema.as_str(), error)
    }

    /// Whether statements are called by their prepared names.
    pub(super) fn prepared(&self) -> bool {
        self.inner.prepared.load(Ordering::Relaxed)
    }

    pub(super) fn is_serializable(&self) -> bool {
        match self.inner.isolation {
            Some(isolation) => isolation == Isolation::Serializable,
            None => self.inner.serializable.load(Ordering::Relaxed),
        }
    }
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
