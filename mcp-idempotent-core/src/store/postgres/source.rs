//! Where the store's connections come from: the user's pool, or its own.

use std::{future::Future, sync::Arc, time::Duration};

use sqlx::{Connection as _, PgConnection, PgPool, postgres::PgConnectOptions};
use tokio::time::timeout;

use super::{
    bound::within,
    connection::Session,
    own::Own,
    store::{Inner, PostgresStore},
};
use crate::store::{StoreError, StoreErrorKind};

#[derive(Debug, Clone)]
pub(super) enum Source {
    Pool(PgPool),
    Own(Own),
}

impl Source {
    async fn session(&self, bound: Duration) -> Result<Session, sqlx::Error> {
        Ok(match self {
            Self::Pool(pool) => Session::of_pool(pool.acquire().await?, bound),
            Self::Own(own) => Session::of_own(own.take().await?, bound),
        })
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

    /// How many connections there may be, if all of them are in use.
    fn exhausted(&self) -> Option<usize> {
        match self {
            Self::Pool(pool) => {
                let limit = pool.options().get_max_connections();
                (pool.size() >= limit).then_some(usize::try_from(limit).unwrap_or(usize::MAX))
            }
            Self::Own(own) => own.is_exhausted().then(|| own.limit()),
        }
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
        match reserved.take(source, self.inner.acquire_timeout).await {
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
