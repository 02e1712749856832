//! Taking a connection for a batch.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout;

use super::{
    bound::within,
    connection::Session,
    store::{Inner, PostgresStore},
};
use crate::store::{StoreError, StoreErrorKind};

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
            Ok(_) => unavailable("the database was away".to_owned()),
            Err(error) => unavailable("the database accepts none".to_owned()).with_source(error),
        }
    }
}
