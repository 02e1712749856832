//! Connections of the store's own: the most recently used comes first, and nothing is sent to give
//! one back or to take a fresh one.
//!
//! sqlx counts these connections as inside a transaction, for as long as they live. So a `begin` by
//! a handler is a savepoint, although our BEGIN goes out in a batch of plain text, which can return
//! rows.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use deadpool::managed::{
    Manager, Metrics, Object, Pool, PoolConfig, PoolError, QueueMode, RecycleError, RecycleResult,
    WeakPool,
};
use sqlx::{
    Connection as _, PgConnection,
    postgres::{PgConnectOptions, PgTransactionManager},
};
use sqlx_core::transaction::TransactionManager as _;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use super::bound::within;

/// After this long without use it is checked before it is used again. So it is after another one was
/// lost.
const FRESH: Duration = Duration::from_secs(30);
const ASKING: Duration = Duration::from_secs(1);
/// After this long without use it is closed.
const IDLE: Duration = Duration::from_secs(10 * 60);
/// No connection lives longer.
const AGE: Duration = Duration::from_secs(30 * 60);
const CLOSING: Duration = Duration::from_secs(5);
const LOOKED_AT_EVERY: Duration = Duration::from_secs(60);

/// Connections that are opened when they are needed, and counted.
#[derive(Clone)]
pub(super) struct Own {
    pool: Pool<Connect>,
    is_looked_after: Arc<AtomicBool>,
    /// When a connection was last found to be lost.
    lost: Arc<Mutex<Option<Instant>>>,
}

pub(super) struct Connect {
    options: Arc<PgConnectOptions>,
}

/// An open connection.
pub(super) struct Kept {
    pub(super) connection: PgConnection,
    opened: Instant,
    used: Instant,
}

impl Own {
    pub(super) fn new(options: PgConnectOptions, limit: usize) -> Self {
        let options = Arc::new(options);
        let config = PoolConfig {
            queue_mode: QueueMode::Lifo,
            ..PoolConfig::new(limit)
        };
        let Ok(pool) = Pool::builder(Connect { options }).config(config).build() else {
            unreachable!("only a pool with timeouts needs a runtime to be named")
        };
        Self {
            pool,
            is_looked_after: Arc::default(),
            lost: Arc::default(),
        }
    }

    pub(super) fn options(&self) -> Arc<PgConnectOptions> {
        Arc::clone(&self.pool.manager().options)
    }

    pub(super) fn limit(&self) -> usize {
        self.pool.status().max_size
    }

    /// Whether every connection is in use.
    pub(super) fn is_exhausted(&self) -> bool {
        let status = self.pool.status();
        status.size >= status.max_size
    }

    pub(super) fn is_closed(&self) -> bool {
        self.pool.is_closed()
    }

    pub(super) fn close(&self) {
        self.pool.close();
    }

    pub(super) async fn take(&self) -> Result<Object<Connect>, sqlx::Error> {
        if !self.is_looked_after.swap(true, Ordering::Relaxed) {
            drop(tokio::spawn(close_idle(self.pool.weak())));
        }
        loop {
            let mut object = self.pool.get().await.map_err(|error| match error {
                PoolError::Backend(error) => error,
                PoolError::Closed => sqlx::Error::PoolClosed,
                _ => sqlx::Error::PoolTimedOut,
            })?;
            let lost = *self.lost();
            if object.is_trusted(lost) || within(ASKING, object.connection.ping()).await.is_ok() {
                return Ok(object);
            }
            // Others like it are probably dead too.
            drop(Object::take(object));
            self.pool.retain(|kept, _| kept.is_trusted(lost));
        }
    }

    /// A connection was found to be lost. After a restart of the server, or a failover, so are all
    /// that are idle at this moment.
    pub(super) fn has_lost_one(&self) {
        *self.lost() = Some(Instant::now());
    }

    fn lost(&self) -> MutexGuard<'_, Option<Instant>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes connections that have been idle for long, until the store is dropped or closed.
async fn close_idle(pool: WeakPool<Connect>) {
    loop {
        tokio::time::sleep(LOOKED_AT_EVERY).await;
        match pool.upgrade() {
            Some(pool) if !pool.is_closed() => {
                pool.retain(|kept, _| kept.used.elapsed() < IDLE);
            }
            _ => return,
        }
    }
}

impl Kept {
    async fn open(options: &PgConnectOptions) -> Result<Self, sqlx::Error> {
        let mut connection = PgConnection::connect_with(options).await?;
        PgTransactionManager::begin(&mut connection, None).await?;
        sqlx::raw_sql("ROLLBACK").execute(&mut connection).await?;
        let now = Instant::now();
        Ok(Self {
            connection,
            opened: now,
            used: now,
        })
    }

    /// Whether it can be used without a check: it was used a short time ago, and none was `lost`
    /// since.
    fn is_trusted(&self, lost: Option<Instant>) -> bool {
        self.used.elapsed() < FRESH && lost.is_none_or(|lost| lost < self.used)
    }

    pub(super) fn has_been_used(&mut self) {
        self.used = Instant::now();
    }

    /// Closes it without waiting.
    pub(super) fn close(self) {
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(timeout(CLOSING, self.connection.close())));
        }
    }
}

impl Manager for Connect {
    type Type = Kept;
    type Error = sqlx::Error;

    async fn create(&self) -> Result<Kept, sqlx::Error> {
        // Boxed, because few calls have to connect, and every call's future would have room for it.
        Box::pin(Kept::open(&self.options)).await
    }

    async fn recycle(&self, kept: &mut Kept, _: &Metrics) -> RecycleResult<sqlx::Error> {
        if kept.opened.elapsed() < AGE {
            Ok(())
        } else {
            Err(RecycleError::message("it is old"))
        }
    }
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The options contain the password.
        f.debug_struct("Connect").finish_non_exhaustive()
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Own")
            .field("limit", &self.limit())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept")
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}
