//! What a `CallPool` hands out: a connection, and a transaction on it.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use sqlx::{Database, pool::PoolConnection};
use sqlx_core::transaction::TransactionManager;

use super::{CallPool, SqlStore, Turn, Way, misuse};

type Manager<S> = <<S as SqlStore>::Database as Database>::TransactionManager;

/// A connection from a [`CallPool`]. It derefs to sqlx's connection. While a handler holds one,
/// nothing else of its call can use the transaction.
pub struct CallConnection<S: SqlStore>(Source<S>);

enum Source<S: SqlStore> {
    Call(Turn<S>),
    Pool(PoolConnection<S::Database>),
}

impl<S: SqlStore> CallConnection<S> {
    pub(super) async fn take(way: Result<Way<S>, sqlx::Error>) -> Result<Self, sqlx::Error> {
        let source = match way? {
            Way::Call(transaction) => {
                let turn = transaction.lock_owned();
                match tokio::time::timeout(CallPool::<S>::TURN_TIMEOUT, turn).await {
                    Ok(turn) => Source::Call(turn),
                    Err(_) => {
                        return Err(misuse(format!(
                            "another statement of this call has held its connection for {:?}: read a \
                             stream to its end, or drop it, before the next statement",
                            CallPool::<S>::TURN_TIMEOUT
                        )));
                    }
                }
            }
            Way::Pool(pool) => Source::Pool(pool.acquire().await?),
        };
        Ok(Self(source))
    }
}

impl<S: SqlStore> Deref for CallConnection<S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        match &self.0 {
            Source::Call(transaction) => transaction,
            Source::Pool(connection) => connection,
        }
    }
}

impl<S: SqlStore> DerefMut for CallConnection<S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        match &mut self.0 {
            Source::Call(transaction) => transaction,
            Source::Pool(connection) => connection,
        }
    }
}

impl<S: SqlStore> fmt::Debug for CallConnection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallConnection").finish_non_exhaustive()
    }
}

/// A transaction from a [`CallPool`], or a savepoint of the call's transaction. It derefs to sqlx's
/// connection. Dropping it rolls it back.
pub struct CallTransaction<S: SqlStore> {
    connection: CallConnection<S>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Beginning,
    Open,
    Ended,
}

impl<S: SqlStore> CallTransaction<S> {
    pub(super) async fn begin(connection: CallConnection<S>) -> Result<Self, sqlx::Error> {
        let mut transaction = Self {
            connection,
            stage: Stage::Beginning,
        };
        Manager::<S>::begin(&mut transaction.connection, None).await?;
        transaction.stage = Stage::Open;
        Ok(transaction)
    }

    /// Commits. A savepoint is released, and the call's own commit decides.
    ///
    /// # Errors
    ///
    /// The database refused, or the connection is lost. Inside a call, the call's transaction is then
    /// aborted.
    pub async fn commit(mut self) -> Result<(), sqlx::Error> {
        Manager::<S>::commit(&mut self.connection).await?;
        self.stage = Stage::Ended;
        Ok(())
    }

    /// Undoes what was written since [`CallPool::begin`].
    ///
    /// # Errors
    ///
    /// The connection is lost. Nothing is committed.
    pub async fn rollback(mut self) -> Result<(), sqlx::Error> {
        Manager::<S>::rollback(&mut self.connection).await?;
        self.stage = Stage::Ended;
        Ok(())
    }
}

impl<S: SqlStore> Drop for CallTransaction<S> {
    fn drop(&mut self) {
        match (self.stage, &mut self.connection.0) {
            (Stage::Open, _) => Manager::<S>::start_rollback(&mut self.connection),
            // A `begin` that failed or was dropped halfway may have left a transaction open, which the
            // pool's next user must not get.
            (Stage::Beginning, Source::Pool(connection)) => connection.close_on_drop(),
            _ => {}
        }
    }
}

impl<S: SqlStore> Deref for CallTransaction<S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        &self.connection
    }
}

impl<S: SqlStore> DerefMut for CallTransaction<S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        &mut self.connection
    }
}

impl<S: SqlStore> fmt::Debug for CallTransaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallTransaction").finish_non_exhaustive()
    }
}
