//! One connection beside the others, so that renewals do not queue behind handlers. It is opened
//! when it is first needed, and closed after a time without use, or when the pool is closed.
//!
//! A pool's hooks do not run for it, so it may lack the rights that they grant, or not see the
//! rows. It is believed only in what it was seen to do.

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sqlx::{Connection as _, PgConnection, postgres::PgConnectOptions};
use tokio::{
    runtime::Handle,
    sync::{Mutex, OwnedMutexGuard},
    time::{Instant, sleep, timeout},
};

use super::bound::within;

/// It is closed after this long without use.
const IDLE: Duration = Duration::from_secs(60);
const CLOSING: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Reserved {
    place: Arc<Mutex<Option<Open>>>,
    renews: AtomicBool,
}

struct Open {
    connection: PgConnection,
    since: Instant,
    used: Instant,
}

impl Reserved {
    /// Whether it was seen to renew a lease, so that it may be believed if it finds none.
    pub(super) fn renews(&self) -> bool {
        self.renews.load(Ordering::Relaxed)
    }

    pub(super) fn has_renewed(&self) {
        self.renews.store(true, Ordering::Relaxed);
    }

    pub(super) async fn close(&self) {
        let place = Arc::clone(&self.place);
        Taken(place.lock_owned().await).close();
    }

    /// Waits for its turn, and connects if need be.
    pub(super) async fn take(
        &self,
        connect: &PgConnectOptions,
        pool_closes: impl Future<Output = ()> + Send + 'static,
        bound: Duration,
    ) -> Result<Taken, sqlx::Error> {
        within(bound, async {
            let mut place = Arc::clone(&self.place).lock_owned().await;
            if place.is_none() {
                let connection = Box::pin(PgConnection::connect_with(connect)).await?;
                let now = Instant::now();
                *place = Some(Open {
                    connection,
                    since: now,
                    used: now,
                });
                let closing = close_when_idle(Arc::downgrade(&self.place), now, pool_closes);
                drop(tokio::spawn(closing));
            }
            Ok(Taken(place))
        })
        .await
    }
}

/// The connection while somebody uses it.
#[derive(Debug)]
pub(super) struct Taken(OwnedMutexGuard<Option<Open>>);

impl Taken {
    pub(super) fn connection(&self) -> Option<&PgConnection> {
        self.0.as_ref().map(|open| &open.connection)
    }

    pub(super) fn connection_mut(&mut self) -> Option<&mut PgConnection> {
        self.0.as_mut().map(|open| &mut open.connection)
    }

    pub(super) fn give_back(mut self) {
        if let Some(open) = self.0.as_mut() {
            open.used = Instant::now();
        }
    }

    /// Closes it without waiting.
    pub(super) fn close(mut self) {
        if let Some(open) = self.0.take()
            && let Ok(runtime) = Handle::try_current()
        {
            drop(runtime.spawn(timeout(CLOSING, open.connection.close())));
        }
    }
}

async fn close_when_idle(
    place: Weak<Mutex<Option<Open>>>,
    since: Instant,
    pool_closes: impl Future<Output = ()>,
) {
    let mut pool_closes = pin!(pool_closes);
    loop {
        let pool_is_closed = tokio::select! {
            () = &mut pool_closes => true,
            () = sleep(IDLE) => false,
        };
        let Some(place) = place.upgrade() else {
            return;
        };
        let taken = Taken(place.lock_owned().await);
        match &*taken.0 {
            Some(open) if open.since != since => return,
            None => return,
            Some(open) if !pool_is_closed && open.used.elapsed() < IDLE => {}
            Some(_) => return taken.close(),
        }
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}
