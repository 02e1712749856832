//! The lease of a running attempt, shared by all parts that need it.

use std::{
    any::Any,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::{
    engine::{handler::StopSignal, late_transaction::LateTransaction, lent::lock},
    fingerprint::{DownstreamKey, DownstreamSeed, Fingerprint, RecordId, Secret},
    scope::Application,
    store::{CallInfo, Claim, ForeignTransactions, Lease, LeaseEnd, Store, StoreError},
};

/// How long a lease is honoured, and how often it is renewed.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Terms {
    pub(in crate::engine) lease: Duration,
    pub(in crate::engine) heartbeat: Duration,
}

/// What downstream keys are made from. It is the same for every process that may make an attempt at
/// the call.
pub(in crate::engine) struct SeedOf {
    pub(in crate::engine) id: RecordId,
    pub(in crate::engine) fingerprint: Fingerprint,
    pub(in crate::engine) origin: i64,
    pub(in crate::engine) secret: Option<Secret>,
}

/// What a lease needs of its store, whatever the store's type is.
pub(in crate::engine) trait LeaseStore: Send + Sync {
    fn renew<'a>(
        &'a self,
        lease: &'a Lease,
        period: Duration,
    ) -> BoxFuture<'a, Result<LeaseEnd, StoreError>>;

    /// Whether an open transaction blocks all other writes.
    fn is_blocked_by_transactions(&self) -> bool;

    fn foreign_transactions(&self) -> Option<&dyn ForeignTransactions>;

    /// An `Arc` of the store.
    fn any(&self) -> Box<dyn Any>;
}

impl<S: Store> LeaseStore for Arc<S> {
    fn renew<'a>(
        &'a self,
        lease: &'a Lease,
        period: Duration,
    ) -> BoxFuture<'a, Result<LeaseEnd, StoreError>> {
        Box::pin(S::renew(self, lease, period))
    }

    fn is_blocked_by_transactions(&self) -> bool {
        self.transaction_limit().is_some()
    }

    fn foreign_transactions(&self) -> Option<&dyn ForeignTransactions> {
        S::foreign_transactions(self)
    }

    fn any(&self) -> Box<dyn Any> {
        Box::new(Self::clone(self))
    }
}

/// How far an attempt has got. Its lease and its guard share this: if one of them is lost, so is the
/// attempt.
#[derive(Default)]
pub(super) struct Course {
    pub(super) lost: StopSignal,
    /// The handler has returned, so a lost lease is no longer reported.
    returned: AtomicBool,
    transaction: LateTransaction,
}

/// A lease that this process holds, with the store that granted it. `S` is an `Arc` of the store, or
/// `dyn LeaseStore` where the type of the store does not matter.
pub(in crate::engine) struct Held<S: ?Sized = dyn LeaseStore> {
    pub(in crate::engine) lease: Lease,
    pub(super) terms: Terms,
    pub(super) call: CallInfo,
    application: Option<Application>,
    pub(super) course: Arc<Course>,
    /// Computed on first use, because most handlers pass no key on.
    seed: OnceLock<DownstreamSeed>,
    seed_of: SeedOf,
    /// When the lease ends by this process's clock. It errs on the early side, because it is counted
    /// from before the store was asked.
    ends: Mutex<Instant>,
    pub(super) ended: AtomicBool,
    /// The heart is renewing it now.
    pub(super) renewing: AtomicBool,
    /// A second lease that the attempt needs, under another id.
    pub(super) guard: Option<Arc<Held>>,
    /// Keeps the heartbeat alive, so that the lease is renewed even if the engine is gone.
    _heart: Arc<dyn Any + Send + Sync>,
    pub(in crate::engine) store: S,
}

impl<S: Store> Held<Arc<S>> {
    /// A lease that was requested at `asked`, for an attempt that also needs `guard`.
    pub(in crate::engine) fn new(
        (store, heart): (Arc<S>, Arc<dyn Any + Send + Sync>),
        lease: Lease,
        terms: Terms,
        asked: Instant,
        seed_of: SeedOf,
        claim: &Claim,
        guard: Option<Arc<Held>>,
    ) -> Self {
        let course = match &guard {
            Some(guard) => Arc::clone(&guard.course),
            None => Arc::default(),
        };
        Self {
            ends: Mutex::new(asked + terms.lease),
            lease,
            terms,
            call: claim.call.clone(),
            application: claim.application.clone(),
            course,
            seed: OnceLock::new(),
            seed_of,
            ended: AtomicBool::new(false),
            renewing: AtomicBool::new(false),
            guard,
            _heart: heart,
            store,
        }
    }
}

impl<S: LeaseStore + ?Sized> Held<S> {
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

    /// The transaction that the handler may begin.
    pub(super) fn transaction(&self) -> &LateTransaction {
        &self.course.transaction
    }

    /// Counts something for the application.
    pub(super) fn count(&self, what: impl FnOnce(&Application)) {
        if let Some(application) = &self.application {
            what(application);
        }
    }

    /// The handler has returned. The lease is still renewed, so that it lasts until the result is
    /// recorded, but its loss is no longer reported.
    pub(in crate::engine) fn returned(&self) {
        self.course.returned.store(true, Ordering::Release);
    }

    pub(super) fn has_returned(&self) -> bool {
        self.course.returned.load(Ordering::Acquire)
    }

    /// From now on the lease is not renewed.
    pub(in crate::engine) fn end(&self) {
        self.returned();
        self.ended.store(true, Ordering::Release);
    }

    /// Whether the lease is no longer renewed.
    pub(super) fn is_over(&self) -> bool {
        self.ended.load(Ordering::Acquire) || self.is_lost()
    }

    /// How much of the lease is left, as far as this process knows.
    pub(in crate::engine) fn left(&self) -> Duration {
        lock(&self.ends).saturating_duration_since(Instant::now())
    }

    /// When to renew next. Like the lease's end, it is counted from before the store was asked.
    pub(super) fn due(&self) -> Instant {
        let ends = *lock(&self.ends);
        let due = ends - self.terms.lease + self.terms.heartbeat;
        // The handler's transaction will complete the record. Above READ COMMITTED a renewal in
        // between makes it fail, and in SQLite the renewal would be blocked. Such a transaction is
        // short, so the renewal is postponed as long as possible.
        if self.transaction().is_open() || self.transaction().is_elsewhere() {
            due.max(ends - self.terms.lease / 4)
        } else {
            due
        }
    }

    pub(super) fn renewed(&self, asked: Instant) {
        let mut ends = lock(&self.ends);
        *ends = (*ends).max(asked + self.terms.lease);
    }
}
