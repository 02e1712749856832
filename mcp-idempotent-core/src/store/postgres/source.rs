//! Where the store's connections come from: the user's pool, or its own.

use std::{future::Future, sync::Arc, time::Duration};

use sqlx::{PgPool, postgres::PgConnectOptions};

use super::{connection::Session, own::Own};

#[derive(Debug, Clone)]
pub(super) enum Source {
    Pool(PgPool),
    Own(Own),
}

impl Source {
    pub(super) async fn session(&self, bound: Duration) -> Result<Session, sqlx::Error> {
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
    pub(super) fn exhausted(&self) -> Option<usize> {
        match self {
            Self::Pool(pool) => {
                let limit = pool.options().get_max_connections();
                (pool.size() >= limit).then_some(usize::try_from(limit).unwrap_or(usize::MAX))
            }
            Self::Own(own) => own.is_exhausted().then(|| own.limit()),
        }
    }
}
