//! The store: its settings, what it has learned about the database, and where its connections come
//! from.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use sqlx::{Connection as _, PgConnection, PgPool, postgres::PgConnectOptions};
use tokio::time::timeout;

use super::{
    bound::within, connection::Session, error, lock::Locks, own::Own, reserved::Reserved,
    schema_name::SchemaName, statement::Statements,
};
use crate::{
    fingerprint::RecordId,
    record::Timestamp,
    store::{CallInfo, StoreError, StoreErrorKind},
};

/// Keeps records in Postgres; for both modes. Cheap to clone. See the [module](super).
///
/// ```no_run
/// use mcp_idempotent_core::store::postgres::PostgresStore;
///
/// # async fn start(pool: sqlx::PgPool) -> Result<(), mcp_idempotent_core::StoreError> {
/// let store = PostgresStore::connect("postgres://app@localhost/billing")?;
/// store.migrate().await?;
///
/// // On connections of yours, with other settings.
/// let store = PostgresStore::builder(pool).with_schema("billing_keys").build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) source: Source,
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
    pub(super) clock: ServerClock,
    pub(super) completed: SeenCompleted,
    /// The first block that the next sweep looks at.
    pub(super) swept_to: AtomicU64,
    /// Whether prepared names are used. Cleared for good if they turn out not to last.
    pub(super) prepared: AtomicBool,
    /// A transaction was seen to be serializable.
    pub(super) serializable: AtomicBool,
    /// How many transactions have begun at a level that the store does not set.
    pub(super) begun: AtomicU64,
}

/// The isolation level of a handler's transaction. It is part of BEGIN, because Postgres does not
/// allow a change after the first statement (in the set-up hook, for instance).
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
    /// How many connections a store opens of its own at most: 10.
    pub const DEFAULT_CONNECTIONS: u32 = 10;
    /// How long a claim waits for a connection: 5 seconds.
    pub const DEFAULT_ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
    /// How long the store waits for the answer to one of its own round trips before the connection
    /// counts as lost: 10 seconds.
    pub const DEFAULT_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
    /// The same for statements that may take long (operator commands, sweeps, migrations and checks
    /// of the tables): 60 seconds.
    pub const DEFAULT_MAINTENANCE_TIMEOUT: Duration = Duration::from_secs(60);
    /// How long a handler may leave its transaction idle before the server ends the session:
    /// 60 seconds.
    pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
    /// How long the store tries to find out what became of a commit whose answer was lost:
    /// 10 seconds.
    pub const DEFAULT_RECOVERY_TIMEOUT: Duration = Duration::from_secs(10);
    /// How long a statement in lease mode, or of an operator, waits for a lock that somebody else
    /// holds on our table or on a record: 5 seconds.
    pub const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(5);
    /// Results up to this size are part of the statement that commits. Larger ones are bound, which
    /// takes two more round trips.
    pub const INLINE_RESULT_BYTES: usize = 4096;

    /// How often the store checks that the session of a running handler still lives: every 10
    /// seconds, or after each idle timeout if that is shorter.
    pub const SESSION_CHECKED_EVERY: Duration = Duration::from_secs(10);

    /// Closes the store's own connections, and the one for renewals. Connections in use are closed
    /// when they are given back. A user's pool is left open. Call it after the last call has ended.
    pub async fn close(&self) {
        if let Source::Own(own) = &self.inner.source {
            own.close();
        }
        self.inner.reserved.close().await;
    }

    /// Whether this is a clone of `other`.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(super) fn error(&self, doing: &str, error: sqlx::Error) -> StoreError {
        error::store_error(doing, self.inner.schema.as_str(), error)
    }

    /// Whether statements are called by their prepared names.
    pub(super) fn prepared(&self) -> bool {
        self.inner.prepared.load(Ordering::Relaxed)
    }

    /// Whether the next transaction should report if it is serializable. Not every one has to: it
    /// costs a call a little, a database's default rarely changes, and a call that finds out too
    /// late is only refused, and can be repeated.
    pub(super) fn asks_for_isolation(&self) -> bool {
        const EVERY: u64 = 64;
        let begun = self.inner.begun.load(Ordering::Relaxed);
        self.inner.isolation.is_none() && begun.is_multiple_of(EVERY)
    }

    /// A transaction has begun, and was not serializable if it was asked.
    pub(super) fn has_begun(&self) {
        self.inner.begun.fetch_add(1, Ordering::Relaxed);
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

impl PostgresStore {
    /// Takes a connection, within the time limit. A pool's own settings apply.
    pub(super) async fn session(&self) -> Result<Session, StoreError> {
        let Inner {
            source,
            acquire_timeout,
            answer_timeout,
            ..
        } = &*self.inner;
        match timeout(*acquire_timeout, source.session(*answer_timeout)).await {
            Ok(Ok(session)) => Ok(session),
            Ok(Err(error)) => Err(self.error("no connection to the database", error)),
            Err(_) => Err(self.no_connection().await),
        }
    }

    /// Takes the connection that is kept for renewals, or another one if there can be none.
    pub(super) async fn reserved_session(&self) -> Result<Session, StoreError> {
        let Inner {
            source, reserved, ..
        } = &*self.inner;
        let bound = self.inner.acquire_timeout;
        let taken = if source.is_closed() {
            Err(sqlx::Error::PoolClosed)
        } else {
            let (connect, closes) = (source.connect_options(), source.pool_closes());
            reserved.take(&connect, closes, bound).await
        };
        match taken {
            Ok(taken) => Ok(Session::reserved(taken, self.inner.answer_timeout)),
            Err(error) => {
                tracing::debug!(%error, "no reserved connection");
                self.session().await
            }
        }
    }

    /// Why no connection came free. A pool does not say, so the database is asked.
    async fn no_connection(&self) -> StoreError {
        /// The error is late enough already.
        const ASKING: Duration = Duration::from_secs(1);
        let Inner {
            source,
            acquire_timeout: bound,
            ..
        } = &*self.inner;
        let unavailable = |why: String| {
            let said = format!("no connection came free within {bound:?}: {why}");
            StoreError::new(StoreErrorKind::Unavailable, said)
        };
        if let Some(limit) = source.exhausted() {
            return unavailable(format!(
                "the pool has {limit}, which is less than the number of calls that run at once"
            ));
        }
        let connect = source.connect_options();
        match within(ASKING.min(*bound), PgConnection::connect_with(&connect)).await {
            Ok(_) => unavailable("the database was unreachable".to_owned()),
            Err(error) => unavailable("the database accepts none".to_owned()).with_source(error),
        }
    }
}

/// Where connections come from: the user's pool, or the store itself.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Pool(PgPool),
    Own(Own),
}

impl Source {
    pub(super) async fn session(&self, bound: Duration) -> Result<Session, sqlx::Error> {
        Ok(match self {
            // Boxed, because sqlx's future is larger than all of ours together.
            Self::Pool(pool) => Session::of_pool(Box::pin(pool.acquire()).await?, bound),
            Self::Own(own) => Session::of_own(own.take().await?, bound),
        })
    }

    /// Says that a connection was found to be lost.
    pub(super) fn has_lost_one(&self) {
        if let Self::Own(own) = self {
            own.has_lost_one();
        }
    }

    pub(super) fn connect_options(&self) -> Arc<PgConnectOptions> {
        match self {
            Self::Pool(pool) => pool.connect_options(),
            Self::Own(own) => own.options(),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Pool(pool) => pool.is_closed(),
            Self::Own(own) => own.is_closed(),
        }
    }

    /// Resolves when somebody closes the user's pool.
    pub(super) fn pool_closes(&self) -> impl Future<Output = ()> + use<> {
        let event = match self {
            Self::Pool(pool) => Some(pool.close_event()),
            Self::Own(_) => None,
        };
        async move {
            match event {
                Some(event) => event.await,
                None => std::future::pending().await,
            }
        }
    }

    /// The limit on connections, if all of them are in use.
    pub(super) fn exhausted(&self) -> Option<usize> {
        match self {
            Self::Pool(pool) => {
                let limit = pool.options().get_max_connections();
                (pool.size() >= limit).then_some(usize::try_from(limit).unwrap_or(usize::MAX))
            }
            Self::Own(own) => own.is_exhausted().then(|| own.limit()),
        }
    }
}

/// After this long the server is asked again. Two clocks drift apart by less than a second in that
/// time.
const ASKED_EVERY: Duration = Duration::from_secs(60);

/// The last time that the server told, plus what has passed since by this process's own steady
/// clock. It is only informative: it tells callers that joined a call when that call was completed.
/// The record itself has the server's time.
#[derive(Debug, Default)]
pub(super) struct ServerClock(Mutex<Option<(Instant, Timestamp)>>);

impl ServerClock {
    pub(super) fn has_told(&self, at: Timestamp) {
        *self.lock() = Some((Instant::now(), at));
    }

    /// `None` if the server has to be asked.
    pub(super) fn now(&self) -> Option<Timestamp> {
        let (told, at) = (*self.lock())?;
        let passed = told.elapsed();
        let micros = i64::try_from(passed.as_micros()).ok()?;
        let now = at.as_micros().checked_add(micros)?;
        (passed < ASKED_EVERY).then_some(Timestamp::from_micros(now))
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, Timestamp)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which records this process has lately seen completed. A retry usually comes to the process that answered the call.
/// There, a plain look-up answers it, without a transaction and its locks. It is only a hint: the look-up decides.
/// Record ids are hashes. So the first bytes of one say where it is kept, until another one takes that place.
pub(super) struct SeenCompleted(Box<[AtomicU64]>);

impl SeenCompleted {
    const PLACES: usize = 4096;

    pub(super) fn new() -> Self {
        Self((0..Self::PLACES).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn has(&self, id: RecordId) -> bool {
        let (place, hash) = self.place(id);
        place.load(Ordering::Relaxed) == hash
    }

    pub(super) fn insert(&self, id: RecordId) {
        let (place, hash) = self.place(id);
        place.store(hash, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, id: RecordId) {
        let (place, hash) = self.place(id);
        // Another id may have taken the place.
        place
            .compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed)
            .ok();
    }

    fn place(&self, id: RecordId) -> (&AtomicU64, u64) {
        let [a, b, c, d, e, f, g, h, ..] = *id.as_bytes();
        let place = usize::from(u16::from_le_bytes([a, b])) % Self::PLACES;
        (&self.0[place], u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_seen_completed_until_another_takes_its_place() {
        let seen = SeenCompleted::new();
        let mut bytes = [1; 32];
        let first = RecordId::from_bytes(bytes);
        bytes[2] = 2;
        let other = RecordId::from_bytes(bytes);
        seen.insert(first);
        assert!(seen.has(first) && !seen.has(other));
        seen.insert(other);
        assert!(!seen.has(first) && seen.has(other));
        seen.remove(first);
        assert!(seen.has(other));
    }

    #[test]
    fn a_clock_goes_on_from_what_the_server_told_and_asks_again_after_a_while() {
        let clock = ServerClock::default();
        assert_eq!(clock.now(), None);
        clock.has_told(Timestamp::from_micros(1_000_000));
        let now = clock.now().unwrap().as_micros();
        assert!((1_000_000..2_000_000).contains(&now), "{now}");
        let long_ago = Instant::now().checked_sub(ASKED_EVERY).unwrap();
        *clock.lock() = Some((long_ago, Timestamp::from_micros(1_000_000)));
        assert_eq!(clock.now(), None);
    }
}
