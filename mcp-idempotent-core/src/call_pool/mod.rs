//! A handle like sqlx's `Pool` that writes through the transaction of the call that it is used in.

mod connection;
mod executor;
mod strays;

use std::{fmt, sync::Arc, time::Duration};

use sqlx::{Database, Pool};
use tokio::sync::OwnedMutexGuard;

pub use self::{
    connection::{CallConnection, CallTransaction},
    strays::Strays,
};
use crate::{
    engine::{Lent, NotLent},
    store::TransactionStore,
};

/// A pool for handlers, and for the services that they call.
///
/// 1. Inside a tool call in transaction mode, everything goes through the call's transaction: it
///    commits together with the record, or not at all.
/// 2. Everywhere else (outside a call, in lease mode, in a task that a handler spawned) it goes to
///    the plain pool.
/// 3. A reference to it is an sqlx [`Executor`](sqlx::Executor). [`acquire`](Self::acquire) and
///    [`begin`](Self::begin) are like the pool's. Inside a call, `begin` sets a savepoint: `commit`
///    then keeps what was written for the call's own commit, and `rollback` undoes it.
/// 4. The statements of one call take turns. One that is issued while a stream of the same call is
///    still being read can never have its turn: it fails after [`CallPool::TURN_TIMEOUT`].
/// 5. A handler uses either this or its `&mut` transaction, not both at the same time.
///
/// To migrate a server whose services take `&PgPool`, replace the pool's type.
///
/// ```
/// # #[cfg(feature = "sqlite")] mod example {
/// use mcp_idempotent_core::{CallPool, store::sqlite::SqliteStore};
///
/// type Pool = CallPool<SqliteStore>;
///
/// /// Commits with the call that it runs in, or by itself.
/// async fn book(pool: &Pool, text: &str) -> Result<(), sqlx::Error> {
///     sqlx::query("INSERT INTO entry (text) VALUES (?1)").bind(text).execute(pool).await?;
///     let mut transaction = pool.begin().await?; // inside a call, a savepoint
///     sqlx::query("UPDATE total SET entries = entries + 1").execute(&mut *transaction).await?;
///     transaction.commit().await
/// }
/// # }
/// ```
pub struct CallPool<S: SqlStore> {
    store: S,
    pool: Pool<S::Database>,
}

/// A store whose transactions are sqlx's.
pub trait SqlStore:
    TransactionStore<Connection = <Self::Database as Database>::Connection> + Clone
{
    /// sqlx's name for the database.
    type Database: Database;

    /// Whether this is the same store, and not only another one of its kind.
    fn is(&self, other: &Self) -> bool;
}

/// A user's turn on the transaction of a call.
type Turn<S> = OwnedMutexGuard<<S as TransactionStore>::Transaction>;

/// Whose connection a statement uses.
enum Way<S: SqlStore> {
    Call(Arc<tokio::sync::Mutex<S::Transaction>>),
    Pool(Pool<S::Database>),
}

impl<S: SqlStore> CallPool<S> {
    /// How long a statement waits for another one of the same call: 10 seconds.
    pub const TURN_TIMEOUT: Duration = Duration::from_secs(10);

    /// A handle for the calls of `store`. `pool` serves everything else, and must lead to the same
    /// database.
    #[must_use]
    pub const fn new(store: S, pool: Pool<S::Database>) -> Self {
        Self { store, pool }
    }

    /// The plain pool. What is written through it is not part of any call.
    #[must_use]
    pub const fn plain(&self) -> &Pool<S::Database> {
        &self.pool
    }

    /// A connection: inside a call its own, elsewhere one of the pool's.
    ///
    /// # Errors
    ///
    /// The pool gave none. Inside a call: another statement of the call held the connection for too
    /// long, the handler has borrowed the transaction as a parameter, or the call has ended. Nothing
    /// was changed.
    pub async fn acquire(&self) -> Result<CallConnection<S>, sqlx::Error> {
        CallConnection::take(self.way()).await
    }

    /// Begins a transaction. Inside a call it is a savepoint of the call's transaction.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire); or the database refused.
    pub async fn begin(&self) -> Result<CallTransaction<S>, sqlx::Error> {
        CallTransaction::begin(self.acquire().await?).await
    }

    fn way(&self) -> Result<Way<S>, sqlx::Error> {
        match Lent::<S>::current() {
            Some(lent) if lent.store().is(&self.store) => {
                lent.share().map(Way::Call).map_err(not_shared)
            }
            _ => Ok(Way::Pool(self.pool.clone())),
        }
    }
}

impl<S: SqlStore> Clone for CallPool<S> {
    fn clone(&self) -> Self {
        Self::new(self.store.clone(), self.pool.clone())
    }
}

impl<S: SqlStore> fmt::Debug for CallPool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallPool").finish_non_exhaustive()
    }
}

fn not_shared(why: NotLent) -> sqlx::Error {
    misuse(match why {
        NotLent::Ended => "the call that this `CallPool` was used in has ended",
        NotLent::BorrowedBefore => {
            "the handler holds the call's transaction as a parameter: write through that parameter, or \
             remove it and write through the `CallPool` alone"
        }
    })
}

/// A mistake in the author's code.
fn misuse(message: impl Into<String>) -> sqlx::Error {
    let message = message.into();
    tracing::error!(message, "a `CallPool` was used wrongly");
    sqlx::Error::Configuration(message.into())
}

#[cfg(feature = "postgres")]
impl SqlStore for crate::store::postgres::PostgresStore {
    type Database = sqlx::Postgres;

    fn is(&self, other: &Self) -> bool {
        self.is_same_as(other)
    }
}

#[cfg(feature = "sqlite")]
impl SqlStore for crate::store::sqlite::SqliteStore {
    type Database = sqlx::Sqlite;

    fn is(&self, other: &Self) -> bool {
        self.is_same_as(other)
    }
}
