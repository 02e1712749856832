//! A lease while its attempt runs: kept alive, watched, and in the handler's hand.

mod heart;
mod transaction;

use std::{
    any::Any,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

pub(super) use self::heart::Heart;
use self::transaction::Open;
pub use self::transaction::{BeginError, LeaseTransaction};
pub(super) use self::transaction::{Ending, Left};
use crate::{
    fingerprint::{DownstreamKey, DownstreamSeed, Fingerprint, RecordId, Secret},
    store::{CallInfo, Lease, LeaseEnd, Store, StoreError, StoreErrorKind},
};

/// How long a handler that asks for its lease waits for the store at least, although by this
/// process's clock the lease may have ended.
const SHORTEST_ANSWER: Duration = Duration::from_secs(1);

/// Why a handler cannot be sure of its lease.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotCurrent {
    /// The lease is lost: it lapsed, an operator resolved the record, or another attempt took over.
    /// Whatever the handler does now is not recorded, and may be done twice.
    Fenced,
    /// The store could not be asked in time.
    Unconfirmed(StoreError),
}

impl fmt::Display for NotCurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fenced => {
                "the call has lost its lease; another attempt or an operator may have it"
            }
            Self::Unconfirmed(_) => "the store could not confirm that the call still has its lease",
        })
    }
}

impl std::error::Error for NotCurrent {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Fenced => None,
            Self::Unconfirmed(error) => Some(error),
        }
    }
}

/// What a handler in lease mode can know of its attempt, and do under it. Cheap to clone; it
/// outlives the attempt, and is then not current.
#[derive(Clone)]
pub struct LeaseHandle {
    held: Arc<dyn Held>,
}

impl LeaseHandle {
    pub(super) fn new<S: Store>(kept: Arc<Kept<S>>) -> Self {
        Self { held: kept }
    }

    /// A key for a call to another system: the same for every attempt at this call, another one for
    /// each `step`. A handler that makes one outside call can name it as it likes; it must not
    /// change the name, as calls that are under way would then be made twice.
    #[must_use]
    pub fn downstream_key(&self, step: &str) -> DownstreamKey {
        self.held.watched().seed.get().key(step)
    }

    /// Asks the store, now, whether this attempt still has its lease, and renews it. To be called
    /// right before the outside call: after a pause of the process (or of its machine) the lease may
    /// have ended without the handler's having noticed.
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

    /// Ends when the lease is lost while the attempt runs, and never otherwise.
    pub async fn lost(&self) {
        self.held.watched().lost().await;
    }

    /// Whether the lease is known to be lost. The store may know better:
    /// [`ensure_current`](Self::ensure_current).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.watched().is_lost()
    }

    /// The how manieth attempt at this call it is; the first is 1.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        let lease = &self.held.watched().lease;
        lease.as_ref().map_or(1, |lease| lease.attempts)
    }

    /// The fencing token: it grows with each attempt, and is never used twice in a store. A system
    /// that can compare it can refuse a late attempt. `None` in a call that nothing protects.
    #[must_use]
    pub fn token(&self) -> Option<i64> {
        let lease = &self.held.watched().lease;
        lease.as_ref().map(|lease| lease.token)
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

/// How long a lease is honoured, and how often it is renewed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) lease: Duration,
    pub(super) heartbeat: Duration,
}

/// Made when it is first asked for: most handlers pass no key on.
pub(super) struct Seed {
    made: OnceLock<DownstreamSeed>,
    /// None for a call that nothing protects: no other call has its keys.
    from: Option<(RecordId, Fingerprint, i64, Option<Secret>)>,
}

impl Seed {
    pub(super) const fn new(
        id: RecordId,
        fingerprint: Fingerprint,
        origin: i64,
        secret: Option<Secret>,
    ) -> Self {
        Self {
            made: OnceLock::new(),
            from: Some((id, fingerprint, origin, secret)),
        }
    }

    pub(super) const fn unique() -> Self {
        Self {
            made: OnceLock::new(),
            from: None,
        }
    }

    fn get(&self) -> &DownstreamSeed {
        self.made.get_or_init(|| match &self.from {
            Some((id, fingerprint, origin, secret)) => {
                DownstreamSeed::new(id, fingerprint, *origin, secret.as_ref())
            }
            None => DownstreamSeed::unique(),
        })
    }
}

/// What does not depend on the store's type.
pub(super) struct Watched {
    /// None in a call that nothing protects.
    pub(super) lease: Option<Lease>,
    pub(super) terms: Terms,
    seed: Seed,
    call: CallInfo,
    /// By this process's clock, and early: counted from before the store was asked.
    ends: Mutex<Instant>,
    lost: AtomicBool,
    /// The handler has returned: whether the lease is current is nobody's business any more.
    returned: AtomicBool,
    ended: AtomicBool,
    /// The heart is renewing it.
    renewing: AtomicBool,
    transaction: Mutex<Open>,
    /// By when a handler that holds a transaction has to return.
    limit: Mutex<Option<Instant>>,
    /// `lost` or `limit` has changed.
    changed: Notify,
}

impl Watched {
    async fn lost(&self) {
        self.once(|| self.is_lost().then_some(())).await;
    }

    /// Waits until there is something to be had.
    async fn once<T>(&self, look: impl Fn() -> Option<T>) -> T {
        loop {
            // Listening before looking: what changes in between is heard.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            changed.await;
        }
    }

    fn limit(&self, at: Instant) {
        *lock(&self.limit) = Some(at);
        self.changed.notify_waiters();
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Nobody renews it any more.
    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Acquire) || self.is_lost()
    }

    /// How much of the lease is left.
    fn left(&self) -> Duration {
        lock(&self.ends).saturating_duration_since(Instant::now())
    }

    /// When it is to be renewed next: counted, as its end is, from before the store was asked.
    fn due(&self) -> Instant {
        let ends = *lock(&self.ends);
        let due = ends - self.terms.lease + self.terms.heartbeat;
        // The handler's transaction is to complete the record: above READ COMMITTED a renewal in
        // between makes it fail, and in SQLite the renewal could not be made. Such a transaction is
        // short, so that it is put off as long as it can be.
        if lock(&self.transaction).is_open() {
            due.max(ends - self.terms.lease / 4)
        } else {
            due
        }
    }

    fn renewed(&self, asked: Instant) {
        let mut ends = lock(&self.ends);
        *ends = (*ends).max(asked + self.terms.lease);
    }

    fn lose(&self, why: &'static str) {
        // What ends its own lease does not lose it.
        if self.returned.load(Ordering::Acquire) {
            return;
        }
        if !self.lost.swap(true, Ordering::AcqRel) {
            self.changed.notify_waiters();
            tracing::error!(
                tool = &*self.call.tool,
                token = self.lease.as_ref().map(|lease| lease.token),
                why,
                "a running call has lost its lease; its result will not be recorded"
            );
        }
    }
}

/// A lease of a store of a known type.
pub(super) struct Kept<S> {
    pub(super) store: Arc<S>,
    watched: Watched,
    /// The lease is renewed although everything else of the engine may be gone.
    _heart: Arc<Heart<S>>,
}

impl<S: Store> Kept<S> {
    pub(super) fn new(
        store: Arc<S>,
        heart: Arc<Heart<S>>,
        lease: Option<Lease>,
        terms: Terms,
        asked: Instant,
        seed: Seed,
        call: CallInfo,
    ) -> Self {
        Self {
            store,
            watched: Watched {
                ends: Mutex::new(asked + terms.lease),
                lease,
                terms,
                seed,
                call,
                lost: AtomicBool::new(false),
                returned: AtomicBool::new(false),
                ended: AtomicBool::new(false),
                renewing: AtomicBool::new(false),
                transaction: Mutex::default(),
                limit: Mutex::new(None),
                changed: Notify::new(),
            },
            _heart: heart,
        }
    }

    pub(super) const fn lease(&self) -> Option<&Lease> {
        self.watched.lease.as_ref()
    }

    /// How much of the lease is left, as far as this process knows.
    pub(super) fn left(&self) -> Duration {
        self.watched.left()
    }

    /// The handler has returned. The lease is still renewed, so that it lasts until the result is
    /// recorded, but nothing is reported of it.
    pub(super) fn returned(&self) {
        self.watched.returned.store(true, Ordering::Release);
    }

    /// Nobody renews it from here on.
    pub(super) fn end(&self) {
        self.returned();
        self.watched.ended.store(true, Ordering::Release);
    }

    /// Ends when the lease is lost.
    pub(super) async fn lost(&self) {
        self.watched.lost().await;
    }

    /// Ends when a handler has held its transaction for longer than the store allows.
    pub(super) async fn over_time(&self) {
        let limit = self.watched.once(|| *lock(&self.watched.limit)).await;
        tokio::time::sleep_until(limit).await;
    }

    /// The handler has returned: what it left of its transaction.
    pub(super) fn close_transaction(&self) -> Left {
        lock(&self.watched.transaction).close()
    }

    async fn renew(&self) -> Result<(), NotCurrent> {
        let asked = Instant::now();
        let Watched { lease, terms, .. } = &self.watched;
        let Some(lease) = lease else {
            return Ok(());
        };
        match self.store.renew(lease, terms.lease).await {
            Ok(LeaseEnd::Done(_)) => {
                self.watched.renewed(asked);
                Ok(())
            }
            Ok(LeaseEnd::Fenced) => {
                self.watched.lose("the store says that it is not current");
                Err(NotCurrent::Fenced)
            }
            Err(error) => Err(NotCurrent::Unconfirmed(error)),
        }
    }
}

/// A [`Kept`] of any store.
trait Held: Send + Sync {
    fn watched(&self) -> &Watched;

    fn renew_now(&self) -> BoxFuture<'_, Result<(), NotCurrent>>;

    /// An `Arc` of the store.
    fn store(&self) -> Box<dyn Any>;
}

impl<S: Store> Held for Kept<S> {
    fn watched(&self) -> &Watched {
        &self.watched
    }

    fn renew_now(&self) -> BoxFuture<'_, Result<(), NotCurrent>> {
        Box::pin(async {
            if self.watched.is_lost() || self.watched.returned.load(Ordering::Acquire) {
                return Err(NotCurrent::Fenced);
            }
            // Where one transaction keeps everybody from writing, a renewal would wait for the very
            // handler that asks. The commit of the open transaction is guarded all the same.
            if self.store.transaction_limit().is_some() && lock(&self.watched.transaction).is_open()
            {
                return Ok(());
            }
            let bound = Instant::now() + self.watched.left().max(SHORTEST_ANSWER);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No user code runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
