//! Notices statements that pass by the transaction of their call.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use sqlx::{Database, pool::PoolOptions};

use crate::engine::is_inside_transaction;

/// Notices when a handler in transaction mode takes a connection from a plain pool. What it writes there is not
/// part of its call, and what it reads there lacks what the call has written so far. It is the commonest mistake
/// in a server that is being migrated.
///
/// A test fails with [`assert_none`](Self::assert_none). In a debug build each one is also logged as a warning, in
/// the span of its call. A task that the handler spawned runs no call, so what it takes is not noticed.
///
/// ```
/// # #[cfg(feature = "sqlite")] mod example {
/// use mcp_idempotent_core::call_pool::Strays;
/// use sqlx::{SqlitePool, sqlite::SqlitePoolOptions};
///
/// async fn pool(url: &str) -> Result<(SqlitePool, Strays), sqlx::Error> {
///     let (options, strays) = Strays::watch(SqlitePoolOptions::new());
///     Ok((options.connect(url).await?, strays))
/// }
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Strays(Arc<AtomicUsize>);

impl Strays {
    /// Watches the pool that is made with these options. It sets `before_acquire` and `after_connect`.
    #[must_use]
    pub fn watch<DB: Database>(options: PoolOptions<DB>) -> (PoolOptions<DB>, Self) {
        let strays = Self::default();
        let (idle, new) = (strays.clone(), strays.clone());
        let options = options
            .before_acquire(move |_, _| {
                idle.taken();
                Box::pin(async { Ok(true) })
            })
            .after_connect(move |_, _| {
                new.taken();
                Box::pin(async { Ok(()) })
            });
        (options, strays)
    }

    /// How many connections were taken inside a call.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// For tests.
    ///
    /// # Panics
    ///
    /// A connection was taken inside a call.
    pub fn assert_none(&self) {
        let count = self.count();
        assert_eq!(
            count, 0,
            "{count} times a handler in transaction mode used a plain pool: write through its transaction, or \
             make the pool a `CallPool`"
        );
    }

    fn taken(&self) {
        if is_inside_transaction() {
            self.0.fetch_add(1, Ordering::SeqCst);
            if cfg!(debug_assertions) {
                tracing::warn!(
                    "a handler in transaction mode uses a plain pool; what it writes there is not part of its call"
                );
            }
        }
    }
}
