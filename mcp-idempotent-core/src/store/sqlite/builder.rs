//! Setting up a store.

use std::{fmt, path::Path, str::FromStr as _, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use sqlx::{
    ConnectOptions as _, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::time::Instant;

use super::{
    error::store_error,
    queue::WriterQueue,
    schema,
    statement::Statements,
    store::{Hook, Shared, SqliteStore},
    writer::Backoff,
};
use crate::store::{CallInfo, StoreError, StoreErrorKind};

impl SqliteStore {
    /// Opens a file, creating it if necessary, with a pool of its own. Uses WAL mode and
    /// `synchronous = FULL`, and creates the tables or brings them up to date.
    ///
    /// Takes a path or a `sqlite:` URL. For other settings, build a pool and pass it to
    /// [`builder`](Self::builder).
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](StoreErrorKind::Misconfigured): the database is in memory, this file
    /// system has no WAL mode, or the file cannot be written or was made by a newer version.
    /// [`Busy`](StoreErrorKind::Busy): another process held the file for too long. What was already
    /// set up stays; opening again continues from there.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let options = match path.to_str() {
            Some(url) if url.starts_with("sqlite:") => SqliteConnectOptions::from_str(url)
                .map_err(|error| store_error("reading the URL", error))?,
            _ => SqliteConnectOptions::new().filename(path),
        }
        .create_if_missing(true)
        .synchronous(SqliteSynchronous::Full);
        switch_to_wal(&options)
            .await
            .map_err(|error| store_error("opening the file", error))?;
        let pool = SqlitePoolOptions::new().connect_lazy_with(options);
        let store = Self::builder(pool).build()?;
        store.migrate().await?;
        Ok(store)
    }

    /// A store with default settings on your own pool. The tables must exist:
    /// [`migrate`](Self::migrate) or [`verify`](Self::verify) them at start-up.
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        SqliteStoreBuilder::new(pool).build_with(schema::DEFAULT_PREFIX.into())
    }

    /// Starts building a store on your own pool.
    pub fn builder(pool: SqlitePool) -> SqliteStoreBuilder {
        SqliteStoreBuilder::new(pool)
    }
}

/// WAL mode is a property of the file. Switching needs exclusive access to the file, and SQLite
/// does not wait for that by itself.
async fn switch_to_wal(options: &SqliteConnectOptions) -> Result<(), sqlx::Error> {
    let mut backoff = Backoff::until(Instant::now() + SqliteStoreBuilder::DEFAULT_WAIT_BOUND);
    let mut connection = loop {
        match options.connect().await {
            Ok(connection) => break connection,
            Err(error) => backoff.retry(error).await?,
        }
    };
    loop {
        let switched = sqlx::query("PRAGMA journal_mode = WAL")
            .execute(&mut connection)
            .await;
        match switched {
            Ok(_) => return Ok(()),
            Err(error) => backoff.retry(error).await?,
        }
    }
}

/// Builds a [`SqliteStore`].
#[must_use]
pub struct SqliteStoreBuilder {
    pool: SqlitePool,
    prefix: Option<String>,
    wait_bound: Duration,
    transaction_limit: Duration,
    on_begin: Option<Box<Hook>>,
}

impl SqliteStoreBuilder {
    /// How long a call waits for the writer before it is refused as busy: 10 seconds.
    pub const DEFAULT_WAIT_BOUND: Duration = Duration::from_secs(10);
    /// How long a handler may hold the transaction: 30 seconds.
    pub const DEFAULT_TRANSACTION_LIMIT: Duration = Duration::from_secs(30);

    fn new(pool: SqlitePool) -> Self {
        Self {
            pool,
            prefix: None,
            wait_bound: Self::DEFAULT_WAIT_BOUND,
            transaction_limit: Self::DEFAULT_TRANSACTION_LIMIT,
            on_begin: None,
        }
    }

    /// How long a call waits for the writer. Renewing or ending a running lease takes precedence
    /// over all handlers that queue in this process. It still has to wait for the handler that has
    /// the writer, so it waits for up to the transaction limit plus this.
    pub fn with_wait_bound(mut self, wait_bound: Duration) -> Self {
        self.wait_bound = wait_bound;
        self
    }

    /// How long a handler may hold the transaction. No lease can be renewed meanwhile, so every
    /// lease must be more than three times as long.
    pub fn with_transaction_limit(mut self, transaction_limit: Duration) -> Self {
        self.transaction_limit = transaction_limit;
        self
    }

    /// The prefix of the tables' names; the default is `mcp_idempotent_`.
    pub fn with_table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Runs this hook in each transaction, after the claim and before the handler. Its writes count
    /// as the handler's. If it fails, the call ends before the handler runs, with nothing
    /// committed.
    pub fn with_on_begin(
        mut self,
        hook: impl for<'c> Fn(
            &'c mut SqliteConnection,
            &'c CallInfo,
        ) -> BoxFuture<'c, Result<(), sqlx::Error>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.on_begin = Some(Box::new(hook));
        self
    }

    /// Checks the settings. Nothing is opened yet.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](StoreErrorKind::Misconfigured): the table prefix is not an identifier of
    /// at most 40 letters, digits and underscores.
    pub fn build(mut self) -> Result<SqliteStore, StoreError> {
        let prefix = match self.prefix.take() {
            None => schema::DEFAULT_PREFIX.into(),
            Some(prefix) if schema::is_prefix(&prefix) => prefix.into_boxed_str(),
            Some(prefix) => {
                return Err(StoreError::new(
                    StoreErrorKind::Misconfigured,
                    format!(
                        "SQLite store: {prefix:?} cannot begin a table's name; use at most 40 \
                         ASCII letters, digits and underscores, no digit first, not `sqlite_`"
                    ),
                ));
            }
        };
        Ok(self.build_with(prefix))
    }

    fn build_with(self, prefix: Box<str>) -> SqliteStore {
        SqliteStore {
            shared: Arc::new(Shared {
                writers: WriterQueue::new(self.pool.clone()),
                pool: self.pool,
                statements: Statements::new(&prefix),
                prefix,
                wait_bound: self.wait_bound,
                transaction_limit: self.transaction_limit,
                on_begin: self.on_begin,
            }),
        }
    }
}

impl fmt::Debug for SqliteStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStoreBuilder")
            .field("prefix", &self.prefix)
            .field("wait_bound", &self.wait_bound)
            .field("transaction_limit", &self.transaction_limit)
            .finish_non_exhaustive()
    }
}
