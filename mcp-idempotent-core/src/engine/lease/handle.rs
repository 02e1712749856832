//! A lease in the handler's hand.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

use super::held::{Held, NotCurrent, Watch};
use crate::{
    engine::late::BeginError,
    engine::lent::Borrowed,
    fingerprint::DownstreamKey,
    store::{Store, StoreError, StoreErrorKind, TransactionStore},
};

/// How long a handler that asks for its lease waits for the store at least, although by this
/// process's clock the lease may have ended.
const SHORTEST_ANSWER: Duration = Duration::from_secs(1);

/// What a handler in lease mode can know of its attempt, and do under it. Cheap to clone. It outlives
/// the attempt, and is no longer current then.
#[derive(Clone)]
pub struct LeaseHandle {
    held: Arc<dyn OfAnyStore>,
}

impl LeaseHandle {
    pub(super) fn new<S: Store>(held: Arc<Held<S>>) -> Self {
        Self { held }
    }

    /// A key for a call to another system: the same for every attempt at this call, another one for
    /// each `step`. A handler that makes one outside call can name it as it likes; it must not
    /// change the name, as calls that are under way would then be made twice.
    #[must_use]
    pub fn downstream_key(&self, step: &str) -> DownstreamKey {
        self.held.watch().downstream_key(step)
    }

    /// Asks the store, now, whether this attempt still has its lease, and renews it. Call it right
    /// before the outside call: after a pause of the process (or of its machine) the lease may have
    /// ended without the handler noticing.
    ///
    /// It narrows the gap and does not close it: what reaches the other side after another attempt
    /// took over is stopped by the downstream key alone.
    ///
    /// Ask before [`begin`](Self::begin), not after it: it takes a connection beside the
    /// transaction's, and a transaction above READ COMMITTED cannot complete a lease that was renewed
    /// since its first statement.
    ///
    /// # Errors
    ///
    /// [`NotCurrent`], at the latest when the lease has ended. Do not make the outside call.
    pub async fn ensure_current(&self) -> Result<(), NotCurrent> {
        self.held.renew_now().await
    }

    /// Opens the attempt's transaction: what is written through it, the result and the end of the
    /// lease commit together when the handler returns a result, or not at all. Begin it after the
    /// outside call, so that no connection is held while the other side takes its time.
    ///
    /// Dropping it does not roll back: what was written until then commits when the handler returns a
    /// result. A handler that gives its own writes up halfway (a timeout around them) returns an
    /// error, or puts them into a savepoint.
    ///
    /// # Errors
    ///
    /// [`BeginError`]. The outside call may have been made: what the record says then is the
    /// policy's [`OnError`](crate::OnError).
    pub async fn begin<S: TransactionStore>(&self) -> Result<Borrowed<S>, BeginError> {
        let watch = self.held.watch();
        let store = self
            .held
            .store()
            .downcast::<Arc<S>>()
            .map_err(|_| BeginError::AnotherStore)?;
        if watch.is_lost() {
            return Err(BeginError::Ended);
        }
        watch.transaction.begin(&store, &watch.call).await
    }

    /// Ends when the lease is lost while the attempt runs, and never otherwise.
    pub async fn lost(&self) {
        self.held.watch().lost().await;
    }

    /// Whether the lease is known to be lost. The store may know better:
    /// [`ensure_current`](Self::ensure_current).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.watch().is_lost()
    }

    /// Which attempt at this call it is; the first is 1.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.held.watch().lease.attempts
    }

    /// The fencing token: it grows with each attempt, and is never used twice in a store. A system
    /// that can compare it can refuse a late attempt.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.held.watch().lease.token
    }
}

impl fmt::Debug for LeaseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseHandle")
            .field("token", &self.token())
            .field("attempts", &self.attempts())
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// A [`Held`] of any store: a handler does not name its store's type.
trait OfAnyStore: Send + Sync {
    fn watch(&self) -> &Watch;

    fn renew_now(&self) -> BoxFuture<'_, Result<(), NotCurrent>>;

    /// An `Arc` of the store.
    fn store(&self) -> Box<dyn Any>;
}

impl<S: Store> OfAnyStore for Held<S> {
    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn renew_now(&self) -> BoxFuture<'_, Result<(), NotCurrent>> {
        Box::pin(async {
            let watch = &self.watch;
            if watch.is_lost() || watch.has_returned() {
                return Err(NotCurrent::Fenced);
            }
            // Where one transaction keeps everybody from writing, a renewal would wait for the very
            // handler that asks. The commit of the open transaction is guarded all the same.
            if self.store.transaction_limit().is_some() && watch.transaction.is_open() {
                return Ok(());
            }
            let bound = Instant::now() + watch.left().max(SHORTEST_ANSWER);
            timeout_at(bound, self.renew()).await.unwrap_or_else(|_| {
                Err(NotCurrent::Unconfirmed(StoreError::new(
                    StoreErrorKind::Unavailable,
                    "the store did not answer while the lease lasted",
                )))
            })
        })
    }

    fn store(&self) -> Box<dyn Any> {
        Box::new(Arc::clone(&self.store))
    }
}
