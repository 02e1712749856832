//! A pooled connection that is closed unless it was left in a known good state.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    time::Duration,
};

use deadpool::managed::Object;
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, Postgres, pool::PoolConnection,
    postgres::PgTransactionManager,
};
use sqlx_core::transaction::TransactionManager;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use super::{bound::within, lock::Mark, own::Connect, reserved::Taken, statement::Step};

/// A connection that is closed when it is dropped, unless it was released. So a cancelled future or
/// an unexpected error never returns an open transaction to the pool (sqlx 0.9 does that,
/// transact-rs/sqlx#4385).
#[derive(Debug)]
pub(super) struct Session {
    /// `None` only while it is being dropped.
    connection: Option<Origin>,
    clean: bool,
    /// How long giving it back to the pool may take.
    bound: Duration,
}

/// Where a connection comes from.
#[derive(Debug)]
enum Origin {
    Pool(PoolConnection<Postgres>),
    Own(Object<Connect>),
    Reserved(Taken),
}

impl Session {
    pub(super) fn of_pool(connection: PoolConnection<Postgres>, bound: Duration) -> Self {
        Self::new(Origin::Pool(connection), bound)
    }

    pub(super) fn of_own(object: Object<Connect>, bound: Duration) -> Self {
        Self::new(Origin::Own(object), bound)
    }

    pub(super) fn reserved(taken: Taken, bound: Duration) -> Self {
        Self::new(Origin::Reserved(taken), bound)
    }

    fn new(connection: Origin, bound: Duration) -> Self {
        Self {
            connection: Some(connection),
            clean: false,
            bound,
        }
    }

    /// Whether it is one of the store's own. sqlx always counts those as inside a transaction.
    pub(super) fn is_own(&self) -> bool {
        matches!(self.connection, Some(Origin::Own(_)))
    }

    /// Gives back a connection that is outside any transaction.
    pub(super) fn release(mut self) {
        self.clean = depth(&self) == usize::from(self.is_own());
    }

    /// Gives back a connection after [`commit`](Self::commit) or [`roll_back`](Self::roll_back). A
    /// pool's connection is at the start of an empty transaction; its ROLLBACK goes out together
    /// with the ping that the pool sends.
    pub(super) fn release_ended(mut self) {
        if self.is_own() {
            self.release();
        } else if depth(&self) == 1 {
            PgTransactionManager::start_rollback(&mut self);
            self.clean = true;
        }
    }

    /// How a handler's transaction is committed.
    pub(super) fn commit(&self) -> Step {
        if self.is_own() {
            Step::Commit
        } else {
            Step::CommitAndChain
        }
    }

    /// How a handler's transaction is rolled back.
    pub(super) fn roll_back(&self) -> Step {
        if self.is_own() {
            Step::RollBack
        } else {
            Step::RollBackAndChain
        }
    }

    /// Whether it goes back to its pool at the start of an empty transaction.
    pub(super) fn is_chained(&self) -> bool {
        !self.is_own() && depth(self) == 1
    }

    /// Opens a transaction in one round trip, with a batch that starts with BEGIN. sqlx counts it
    /// as a transaction of depth 1, so a `begin` by the handler is a savepoint. It returns no rows,
    /// so a batch can only answer by raising an error.
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
            Some(Origin::Own(object)) => Some(&object.connection),
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
            Some(Origin::Own(object)) => Some(&mut object.connection),
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
            Some(Origin::Own(mut object)) => {
                if self.clean {
                    // Dropping it gives it back.
                    object.has_been_used();
                } else {
                    Object::take(object).close();
                }
                return;
            }
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
        // The pool sends a ping before it takes a connection back, and would wait for its answer
        // for ever. If we give up, the connection is closed and its place in the pool is free.
        let bound = self.bound;
        drop(runtime.spawn(async move { timeout(bound, connection.return_to_pool()).await }));
    }
}

fn depth(connection: &PgConnection) -> usize {
    PgTransactionManager::get_transaction_depth(connection)
}

/// Reads what abandoned statements have left unread, and drops their errors. Otherwise sqlx would
/// give such an error to the connection's next user, as if it were the answer to what they sent. If
/// nothing was abandoned, this neither sends nor waits.
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
    pub(super) begun: Instant,
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
