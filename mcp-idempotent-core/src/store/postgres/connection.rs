//! A pooled connection that is closed unless it came to a known-good end.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, Postgres, pool::PoolConnection,
    postgres::PgTransactionManager,
};
use sqlx_core::transaction::TransactionManager;
use tokio::{runtime::Handle, time::timeout};

use super::{bound::within, lock::Mark, reserved::Taken};

/// A connection that is closed when it is dropped, unless it was released. So a cancelled future or an
/// unexpected error never returns an open transaction to the pool (sqlx 0.9 does that,
/// transact-rs/sqlx#4385).
#[derive(Debug)]
pub(super) struct Session {
    /// `None` only while it is being dropped.
    connection: Option<Origin>,
    clean: bool,
    /// How long it may take the pool to take it back.
    bound: Duration,
}

/// Where a connection is from.
#[derive(Debug)]
enum Origin {
    Pool(PoolConnection<Postgres>),
    Reserved(Taken),
}

impl Session {
    pub(super) fn new(connection: PoolConnection<Postgres>, bound: Duration) -> Self {
        Self {
            connection: Some(Origin::Pool(connection)),
            clean: false,
            bound,
        }
    }

    pub(super) const fn reserved(taken: Taken, bound: Duration) -> Self {
        Self {
            connection: Some(Origin::Reserved(taken)),
            clean: false,
            bound,
        }
    }

    /// Gives back a connection that is outside any transaction.
    pub(super) fn release(mut self) {
        self.clean = depth(&self) == 0;
    }

    /// Gives back a connection at the start of an empty chained transaction (after `COMMIT AND
    /// CHAIN`). The ROLLBACK goes out together with the ping with which the pool takes it back.
    pub(super) fn release_chained(mut self) {
        if depth(&self) == 1 {
            PgTransactionManager::start_rollback(&mut self);
            self.clean = true;
        }
    }

    /// Whether sqlx believes that it is inside a transaction. Such a connection goes back to the pool
    /// at the start of an empty one.
    pub(super) fn is_chained(&self) -> bool {
        depth(self) == 1
    }

    /// Opens a transaction in one round trip, with a batch that starts with BEGIN. sqlx counts it as a
    /// transaction of depth 1, so a `begin` by the handler is a savepoint. It returns no rows, so a
    /// batch can only answer by raising an error.
    pub(super) async fn begin(
        &mut self,
        batch: String,
        bound: Duration,
    ) -> Result<(), sqlx::Error> {
        let batch = sqlx::SqlSafeStr::into_sql_str(AssertSqlSafe(batch));
        within(bound, async {
            drain(self, bound).await?;
            PgTransactionManager::begin(self, Some(batch)).await
        })
        .await
    }
}

impl Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        let connection = match &self.connection {
            Some(Origin::Pool(connection)) => Some(&**connection),
            Some(Origin::Reserved(taken)) => taken.connection(),
            None => None,
        };
        match connection {
            Some(connection) => connection,
            None => unreachable!("a session has its connection until it is dropped"),
        }
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        let connection = match &mut self.connection {
            Some(Origin::Pool(connection)) => Some(&mut **connection),
            Some(Origin::Reserved(taken)) => taken.connection_mut(),
            None => None,
        };
        match connection {
            Some(connection) => connection,
            None => unreachable!("a session has its connection until it is dropped"),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut connection = match self.connection.take() {
            Some(Origin::Pool(connection)) => connection,
            Some(Origin::Reserved(taken)) if self.clean => return taken.give_back(),
            Some(Origin::Reserved(taken)) => return taken.close(),
            None => return,
        };
        let Ok(runtime) = Handle::try_current() else {
            // The pool takes nothing back outside a runtime.
            drop(connection.detach());
            return;
        };
        if !self.clean {
            // sqlx waits for at most 5 seconds.
            connection.close_on_drop();
            return;
        }
        // The pool sends a ping before it takes a connection back, and would wait for its answer for
        // ever. If it is given up, the connection is closed and its place in the pool is free.
        let bound = self.bound;
        drop(runtime.spawn(async move { timeout(bound, connection.return_to_pool()).await }));
    }
}

fn depth(connection: &PgConnection) -> usize {
    PgTransactionManager::get_transaction_depth(connection)
}

/// Reads what abandoned statements have left unread, and drops their errors. Otherwise sqlx would give
/// such an error to the connection's next user, as if it were the answer to what they sent. If nothing
/// was abandoned, this neither sends nor waits.
pub(super) async fn drain(
    connection: &mut PgConnection,
    bound: Duration,
) -> Result<(), sqlx::Error> {
    let drained = async {
        loop {
            match connection.flush().await {
                Ok(()) => return Ok(()),
                Err(error) if error.as_database_error().is_some() => {
                    tracing::debug!(%error, "a statement that was given up has failed");
                }
                Err(error) => return Err(error),
            }
        }
    };
    within(bound, drained).await
}

/// The transaction that a handler writes through. Dropping it closes the connection, and the server
/// then rolls back.
pub struct PgTransaction {
    pub(super) session: Session,
    pub(super) mark: Mark,
    /// An advisory lock that it holds as long as it lives.
    pub(super) lock: i64,
}

impl Deref for PgTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.session
    }
}

impl DerefMut for PgTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.session
    }
}

impl fmt::Debug for PgTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgTransaction").finish_non_exhaustive()
    }
}
