//! A lease while its attempt runs, as all who have to do with it share it.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{
    engine::late::LateTransaction,
    fingerprint::{DownstreamKey, DownstreamSeed, Fingerprint, RecordId, Secret},
    store::{CallInfo, Lease, LeaseEnd, Store, StoreError},
};

/// Why a handler cannot be sure of its lease.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotCurrent {
    /// The lease is lost: it lapsed, an operator resolved the record, or another attempt took over.
    /// What the handler does from now on is not recorded, and may be done twice.
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

/// How long a lease is honoured, and how often it is renewed.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Terms {
    pub(in crate::engine) lease: Duration,
    pub(in crate::engine) heartbeat: Duration,
}

/// What downstream keys are made from: the same for all who may make an attempt at the call.
pub(in crate::engine) struct SeedOf {
    pub(in crate::engine) id: RecordId,
    pub(in crate::engine) fingerprint: Fingerprint,
    pub(in crate::engine) origin: i64,
    pub(in crate::engine) secret: Option<Secret>,
}

/// A lease, with the store that granted it.
pub(in crate::engine) struct Held<S> {
    pub(in crate::engine) store: Arc<S>,
    pub(in crate::engine) watch: Watch,
    /// The lease is renewed although everything else of the engine may be gone.
    _heart: Arc<dyn Any + Send + Sync>,
}

/// What does not depend on the store's type.
pub(in crate::engine) struct Watch {
    pub(in crate::engine) lease: Lease,
    pub(super) terms: Terms,
    pub(super) call: CallInfo,
    pub(super) transaction: LateTransaction,
    /// Made when it is first asked for: most handlers pass no key on.
    seed: OnceLock<DownstreamSeed>,
    seed_of: SeedOf,
    /// By this process's clock, and early: counted from before the store was asked.
    ends: Mutex<Instant>,
    lost: AtomicBool,
    /// The handler has returned: whether the lease is current is nobody's business any more.
    returned: AtomicBool,
    ended: AtomicBool,
    /// The heart is renewing it.
    pub(super) renewing: AtomicBool,
    lost_now: Notify,
}

impl<S: Store> Held<S> {
    /// A lease that was asked for at `asked`.
    pub(in crate::engine) fn new(
        (store, heart): (Arc<S>, Arc<dyn Any + Send + Sync>),
        lease: Lease,
        terms: Terms,
        asked: Instant,
        seed_of: SeedOf,
        call: CallInfo,
    ) -> Self {
        Self {
            store,
            watch: Watch {
                ends: Mutex::new(asked + terms.lease),
                lease,
                terms,
                call,
                transaction: LateTransaction::default(),
                seed: OnceLock::new(),
                seed_of,
                lost: AtomicBool::new(false),
                returned: AtomicBool::new(false),
                ended: AtomicBool::new(false),
                renewing: AtomicBool::new(false),
                lost_now: Notify::new(),
            },
            _heart: heart,
        }
    }

    /// Asks the store to honour the lease for its whole length from now.
    pub(super) async fn renew(&self) -> Result<(), NotCurrent> {
        let asked = Instant::now();
        let watch = &self.watch;
        match self.store.renew(&watch.lease, watch.terms.lease).await {
            Ok(LeaseEnd::Done(_)) => {
                watch.renewed(asked);
                Ok(())
            }
            Ok(LeaseEnd::Fenced) => {
                watch.lose("the store says that it is not current");
                Err(NotCurrent::Fenced)
            }
            Err(error) => Err(NotCurrent::Unconfirmed(error)),
        }
    }
}

impl Watch {
    pub(super) fn downstream_key(&self, step: &str) -> DownstreamKey {
        let seed = self.seed.get_or_init(|| {
            let SeedOf {
                id,
                fingerprint,
                origin,
                secret,
            } = &self.seed_of;
            DownstreamSeed::new(id, fingerprint, *origin, secret.as_ref())
        });
        seed.key(step)
    }

    /// Ends when the lease is lost.
    pub(super) async fn lost(&self) {
        // Listening before looking: what changes in between is heard.
        let mut lost = std::pin::pin!(self.lost_now.notified());
        lost.as_mut().enable();
        if !self.is_lost() {
            lost.await;
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(super) fn lose(&self, why: &'static str) {
        // An attempt that ends its own lease does not lose it.
        if self.has_returned() {
            return;
        }
        if !self.lost.swap(true, Ordering::AcqRel) {
            self.lost_now.notify_waiters();
            tracing::error!(
                tool = &*self.call.tool,
                token = self.lease.token,
                why,
                "a running call has lost its lease; its result will not be recorded"
            );
        }
    }

    /// The handler has returned. The lease is still renewed, so that it lasts until the result is
    /// recorded, but nothing is reported of it.
    pub(super) fn returned(&self) {
        self.returned.store(true, Ordering::Release);
    }

    pub(super) fn has_returned(&self) -> bool {
        self.returned.load(Ordering::Acquire)
    }

    /// Nobody renews it from here on.
    pub(in crate::engine) fn end(&self) {
        self.returned();
        self.ended.store(true, Ordering::Release);
    }

    /// Nobody renews it any more.
    pub(super) fn is_over(&self) -> bool {
        self.ended.load(Ordering::Acquire) || self.is_lost()
    }

    /// How much of the lease is left, as far as this process knows.
    pub(in crate::engine) fn left(&self) -> Duration {
        lock(&self.ends).saturating_duration_since(Instant::now())
    }

    /// When it is to be renewed next: counted, as its end is, from before the store was asked.
    pub(super) fn due(&self) -> Instant {
        let ends = *lock(&self.ends);
        let due = ends - self.terms.lease + self.terms.heartbeat;
        // The handler's transaction is to complete the record: above READ COMMITTED a renewal in
        // between makes it fail, and in SQLite the renewal could not be made. Such a transaction is
        // short, so the renewal is put off for as long as it can be.
        if self.transaction.is_open() {
            due.max(ends - self.terms.lease / 4)
        } else {
            due
        }
    }

    fn renewed(&self, asked: Instant) {
        let mut ends = lock(&self.ends);
        *ends = (*ends).max(asked + self.terms.lease);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No user code runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
