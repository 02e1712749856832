//! The settings of a store.

use std::{
    fmt,
    str::FromStr as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use sqlx::{PgConnection, PgPool, postgres::PgConnectOptions};

use super::{
    lock::{Locks, savepoint},
    own::Own,
    reserved::Reserved,
    schema_name::SchemaName,
    statement::{Statements, Values},
    store::{Inner, Isolation, OnBegin, PostgresStore, SeenCompleted, ServerClock, Source},
};
use crate::store::{CallInfo, StoreError, StoreErrorKind};

impl PostgresStore {
    /// A store that owns its connections, with the default settings. It does not connect yet. This
    /// is the fastest choice: the most recently used connection comes first, and taking it or
    /// giving it back sends nothing.
    ///
    /// # Errors
    ///
    /// The URL is not a Postgres URL.
    pub fn connect(url: &str) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(url).map_err(|error| {
            let said = "Postgres store: the URL cannot be used";
            StoreError::new(StoreErrorKind::Misconfigured, said).with_source(error)
        })?;
        Self::builder_with(options).build()
    }

    /// Starts building a store that owns its connections.
    pub fn builder_with(options: PgConnectOptions) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(Connections::Own(Box::new(options)))
    }

    /// A store on your own pool, with the default settings. It does not ask the database anything
    /// yet. The pool's settings and hooks apply.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        let builder = PostgresStoreBuilder::new(Connections::Pool(pool.clone()));
        builder.build_with(SchemaName::default(), Source::Pool(pool))
    }

    /// Starts building a store on your own pool.
    pub fn builder(pool: PgPool) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(Connections::Pool(pool))
    }
}

#[derive(Debug)]
enum Connections {
    Pool(PgPool),
    Own(Box<PgConnectOptions>),
}

/// Builds a [`PostgresStore`].
#[must_use]
pub struct PostgresStoreBuilder {
    connections: Connections,
    limit: u32,
    schema: String,
    isolation: Option<Isolation>,
    lookup_first: bool,
    acquire_timeout: Duration,
    answer_timeout: Duration,
    maintenance_timeout: Duration,
    idle_timeout: Duration,
    recovery_timeout: Duration,
    lock_timeout: Duration,
    asynchronous_completions: bool,
    prepared_statements: bool,
    on_begin: Option<OnBegin>,
}

impl PostgresStoreBuilder {
    fn new(connections: Connections) -> Self {
        Self {
            connections,
            limit: PostgresStore::DEFAULT_CONNECTIONS,
            schema: SchemaName::DEFAULT.to_owned(),
            isolation: None,
            lookup_first: false,
            acquire_timeout: PostgresStore::DEFAULT_ACQUIRE_TIMEOUT,
            answer_timeout: PostgresStore::DEFAULT_ANSWER_TIMEOUT,
            maintenance_timeout: PostgresStore::DEFAULT_MAINTENANCE_TIMEOUT,
            idle_timeout: PostgresStore::DEFAULT_IDLE_TIMEOUT,
            recovery_timeout: PostgresStore::DEFAULT_RECOVERY_TIMEOUT,
            lock_timeout: PostgresStore::DEFAULT_LOCK_TIMEOUT,
            asynchronous_completions: false,
            prepared_statements: true,
            on_begin: None,
        }
    }

    /// How many connections of its own the store opens at most, besides one for renewals. Your own
    /// pool has its own limit. Default: [`PostgresStore::DEFAULT_CONNECTIONS`].
    pub fn with_connections(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// The schema of the tables. Default: `mcp_idempotent`. It must be a plain identifier: lower
    /// case letters, digits and underscores.
    pub fn with_schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// The isolation level of handlers' transactions. Default: the session's own default.
    pub fn with_isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// On your own pool: always looks for a record before opening a transaction, and not only for a
    /// call that this process has lately seen completed. A replay of another process's call then
    /// takes one round trip instead of two, and leaves no error in the server's log. A first call
    /// takes one round trip more. Use it for servers whose calls are mostly replays.
    pub fn with_lookup_first(mut self, lookup_first: bool) -> Self {
        self.lookup_first = lookup_first;
        self
    }

    /// How long a claim waits for a connection from the pool. Default:
    /// [`PostgresStore::DEFAULT_ACQUIRE_TIMEOUT`].
    pub fn with_acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = timeout;
        self
    }

    /// How long the store waits for the answer to one of its own round trips. A connection that is
    /// silent for longer counts as lost, and is closed. If that happens to a commit, its outcome is
    /// looked up on another connection. Make it longer than the
    /// [lock timeout](Self::with_lock_timeout), and than a commit takes. The set-up hook and the
    /// handler's own statements are not ours; set `statement_timeout` for them. Default:
    /// [`PostgresStore::DEFAULT_ANSWER_TIMEOUT`].
    ///
    /// A claim, a renewal or the end of a lease takes at most twice this and the
    /// [acquire timeout](Self::with_acquire_timeout), because a connection that fell silent while
    /// it was idle is replaced once.
    pub fn with_answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// The same for statements that may take long: operator commands, sweeps, migrations and checks
    /// of the tables. Default: [`PostgresStore::DEFAULT_MAINTENANCE_TIMEOUT`].
    pub fn with_maintenance_timeout(mut self, timeout: Duration) -> Self {
        self.maintenance_timeout = timeout;
        self
    }

    /// How long a handler may leave its transaction idle before the server ends the session, which
    /// rolls back. Zero means no limit. Default: [`PostgresStore::DEFAULT_IDLE_TIMEOUT`].
    pub fn with_idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// How long the store tries to find out what became of a commit whose answer was lost. After
    /// that, the outcome is unknown. Default: [`PostgresStore::DEFAULT_RECOVERY_TIMEOUT`].
    pub fn with_recovery_timeout(mut self, timeout: Duration) -> Self {
        self.recovery_timeout = timeout;
        self
    }

    /// How long a statement in lease mode, or of an operator, waits for a lock that somebody else
    /// holds on our table or on a record (a migration, a backup, an open transaction). After that,
    /// it fails as busy. Default: [`PostgresStore::DEFAULT_LOCK_TIMEOUT`]. The handlers' own
    /// transactions keep the session's setting.
    pub fn with_lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// Lease mode: whether a result is recorded without waiting for the disk. It saves one flush
    /// per call. **If Postgres crashes within about half a second after such a call, its caller has
    /// the result, but a retry is told that the outcome is unknown.** Default: no.
    pub fn with_asynchronous_completions(mut self, yes: bool) -> Self {
        self.asynchronous_completions = yes;
        self
    }

    /// Whether the store prepares its statements on each connection. Default: it does. Their names
    /// contain a hash of what they do, so it does not matter who has prepared them.
    ///
    /// Behind a pooler in transaction mode, prepared names do not last. The store finds that out by
    /// itself; switching them off saves it the attempt.
    pub fn with_prepared_statements(mut self, prepared_statements: bool) -> Self {
        self.prepared_statements = prepared_statements;
        self
    }

    /// Sets up the handler's transaction, after the claim and before the handler. The hook sees the
    /// call. Use it for `SET LOCAL` (row-level security), `SET LOCAL ROLE` and the like. If it
    /// fails, the transaction is rolled back and the handler does not run. It is too late here to
    /// change the isolation level.
    ///
    /// A call that is not deduplicated may have no scope. Then set nothing, so that row-level
    /// security policies that need the setting show it no rows.
    ///
    /// ```
    /// # use mcp_idempotent_core::store::postgres::PostgresStoreBuilder;
    /// # fn set_up(builder: PostgresStoreBuilder) -> PostgresStoreBuilder {
    /// builder.with_on_begin(|connection, call| {
    ///     Box::pin(async move {
    ///         if let Some(scope) = &call.scope {
    ///             sqlx::query("SELECT set_config('app.tenant', $1, true)")
    ///                 .bind(scope.as_str())
    ///                 .execute(connection)
    ///                 .await?;
    ///         }
    ///         Ok(())
    ///     })
    /// })
    /// # }
    /// ```
    pub fn with_on_begin<F>(mut self, hook: F) -> Self
    where
        F: for<'c> Fn(&'c mut PgConnection, &'c CallInfo) -> BoxFuture<'c, Result<(), sqlx::Error>>
            + Send
            + Sync
            + 'static,
    {
        self.on_begin = Some(Arc::new(hook));
        self
    }

    /// Builds the store. It does not ask the database anything yet.
    ///
    /// # Errors
    ///
    /// The schema's name is not a plain identifier.
    pub fn build(mut self) -> Result<PostgresStore, StoreError> {
        let schema = SchemaName::new(&self.schema)?;
        let source = match &self.connections {
            Connections::Pool(pool) => Source::Pool(pool.clone()),
            Connections::Own(options) => {
                // A look-up never comes before a transaction on one of these.
                self.lookup_first = false;
                let limit = usize::try_from(self.limit.max(1)).unwrap_or(usize::MAX);
                Source::Own(Own::new(options.as_ref().clone(), limit))
            }
        };
        Ok(self.build_with(schema, source))
    }

    fn build_with(self, schema: SchemaName, source: Source) -> PostgresStore {
        let values = Values {
            schema: &schema.quoted(),
            isolation: self.isolation.map_or("", clause),
            savepoint: &savepoint(),
            idle_timeout: self.idle_timeout,
            lock_timeout: self.lock_timeout,
            // With asynchronous completions the session's own setting decides.
            completion_clock: if self.asynchronous_completions {
                "{clock}"
            } else {
                "{durable_clock}"
            },
        };
        PostgresStore {
            inner: Arc::new(Inner {
                statements: Statements::new(&values),
                locks: Locks::new(schema.as_str()),
                clock: ServerClock::default(),
                completed: SeenCompleted::new(),
                swept_to: AtomicU64::new(0),
                source,
                reserved: Reserved::default(),
                schema,
                isolation: self.isolation,
                lookup_first: self.lookup_first,
                acquire_timeout: self.acquire_timeout,
                answer_timeout: self.answer_timeout,
                maintenance_timeout: self.maintenance_timeout,
                recovery_timeout: self.recovery_timeout,
                session_checked_every: match self.idle_timeout {
                    Duration::ZERO => PostgresStore::SESSION_CHECKED_EVERY,
                    limit => limit.min(PostgresStore::SESSION_CHECKED_EVERY),
                },
                asynchronous_completions: self.asynchronous_completions,
                on_begin: self.on_begin,
                prepared: AtomicBool::new(self.prepared_statements),
                serializable: AtomicBool::new(false),
                begun: AtomicU64::new(0),
            }),
        }
    }
}

const fn clause(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::ReadCommitted => " ISOLATION LEVEL READ COMMITTED",
        Isolation::RepeatableRead => " ISOLATION LEVEL REPEATABLE READ",
        Isolation::Serializable => " ISOLATION LEVEL SERIALIZABLE",
    }
}

impl fmt::Debug for PostgresStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStoreBuilder")
            .field("limit", &self.limit)
            .field("schema", &self.schema)
            .field("isolation", &self.isolation)
            .field("lookup_first", &self.lookup_first)
            .field("acquire_timeout", &self.acquire_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .field("maintenance_timeout", &self.maintenance_timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("recovery_timeout", &self.recovery_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .field("prepared_statements", &self.prepared_statements)
            .field("on_begin", &self.on_begin.is_some())
            .finish_non_exhaustive()
    }
}
