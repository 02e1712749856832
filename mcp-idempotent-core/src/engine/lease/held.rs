//! The lease of a running attempt, shared by all parts that need it.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

use crate::{
    engine::{handler::StopSignal, late_transaction::LateTransaction, lent::lock},
    fingerprint::{DownstreamKey, DownstreamSeed, Fingerprint, RecordId, Secret},
    scope::Application,
    store::{
        CallInfo, Claim, ForeignRenewal, ForeignTransactions, Lease, LeaseEnd, Store, StoreError,
        StoreErrorKind,
    },
    telemetry,
};

/// When a handler asks about its lease, it waits for the store at least this long, even if the lease
/// may have ended by this process's clock.
const SHORTEST_ANSWER: Duration = Duration::from_secs(1);

/// Why a handler cannot be sure of its lease.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotCurrent {
    /// The lease is lost: it lapsed, an operator resolved the record, or another attempt took over.
    /// What the handler does from now on is not recorded, and may be done twice.
    Fenced,
    /// The attempt has committed its completion in a transaction of another driver, and with that its
    /// lease has ended.
    Completed,
    /// The store could not be queried in time.
    Unconfirmed(StoreError),
}

impl fmt::Display for NotCurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fenced => {
                "the call has lost its lease; another attempt or an operator may have it"
            }
            Self::Completed => "the call is completed, so it no longer has its lease",
            Self::Unconfirmed(_) => "the store could not confirm that the call still has its lease",
        })
    }
}

impl std::error::Error for NotCurrent {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Fenced | Self::Completed => None,
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

/// How a renewal ended, if the lease is not lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewed {
    Extended,
    /// A transaction of another driver has locked the record, probably to complete it. Until it ends,
    /// nobody can take the record over.
    Locked,
}

/// How far an attempt has got. Its lease and its guard share this: if one of them is lost, so is the
/// attempt.
#[derive(Default)]
struct Course {
    lost: StopSignal,
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
    course: Arc<Course>,
    /// Computed on first use, because most handlers pass no key on.
    seed: OnceLock<DownstreamSeed>,
    seed_of: SeedOf,
    /// When the lease ends by this process's clock. It errs on the early side, because it is counted
    /// from before the store was asked.
    ends: Mutex<Instant>,
    ended: AtomicBool,
    /// The heart is renewing it now.
    pub(super) renewing: AtomicBool,
    /// A second lease that the attempt needs, under another id.
    guard: Option<Arc<Held>>,
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
    /// Asks the store now whether the lease, and its guard, are current, and renews both.
    pub(super) fn renew_now(&self) -> BoxFuture<'_, Result<(), NotCurrent>> {
        Box::pin(async {
            if self.is_lost() || self.has_returned() {
                return Err(NotCurrent::Fenced);
            }
            if self.ended.load(Ordering::Acquire) {
                return Err(NotCurrent::Completed);
            }
            // A renewal would wait for the very handler that asks. The commit of the open transaction is
            // guarded anyway.
            if self.store.is_blocked_by_transactions() && self.transaction().is_open() {
                return Ok(());
            }
            let bound = Instant::now() + self.left().max(SHORTEST_ANSWER);
            let renewed = timeout_at(bound, self.renew()).await.unwrap_or_else(|_| {
                Err(NotCurrent::Unconfirmed(StoreError::new(
                    StoreErrorKind::Unavailable,
                    "the store did not answer before the lease ended",
                )))
            });
            renewed?;
            match &self.guard {
                Some(guard) => guard.renew_now().await,
                None => Ok(()),
            }
        })
    }

    /// Asks the store to extend the lease to its full length from now.
    pub(super) async fn renew(&self) -> Result<Renewed, NotCurrent> {
        let asked = Instant::now();
        let renewed = match self.store.foreign_transactions() {
            Some(foreign) if self.transaction().is_elsewhere() => {
                foreign.renew(&self.lease, self.terms.lease).await
            }
            _ => match self.store.renew(&self.lease, self.terms.lease).await {
                Ok(LeaseEnd::Done(_)) => Ok(ForeignRenewal::Extended),
                Ok(LeaseEnd::Fenced) => self.fenced_or_completed().await,
                Err(error) => Err(error),
            },
        };
        match renewed {
            Ok(ForeignRenewal::Extended) => {
                self.renewed(asked);
                Ok(Renewed::Extended)
            }
            Ok(ForeignRenewal::Locked) => Ok(Renewed::Locked),
            Ok(ForeignRenewal::Completed) => {
                self.ended.store(true, Ordering::Release);
                Err(NotCurrent::Completed)
            }
            Ok(ForeignRenewal::Fenced) => {
                self.lose("the store says that it is not current");
                Err(NotCurrent::Fenced)
            }
            Err(error) => Err(NotCurrent::Unconfirmed(error)),
        }
    }

    /// The completion may have been handed out, and committed, while the renewal was on its way.
    async fn fenced_or_completed(&self) -> Result<ForeignRenewal, StoreError> {
        match self.store.foreign_transactions() {
            Some(foreign) if self.transaction().is_elsewhere() => {
                let completed = foreign.completed(&self.lease).await?;
                Ok(completed.map_or(ForeignRenewal::Fenced, |_| ForeignRenewal::Completed))
            }
            _ => Ok(ForeignRenewal::Fenced),
        }
    }

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

    /// Resolves when the attempt is lost.
    pub(in crate::engine) async fn lost(&self) {
        self.course.lost.told().await;
    }

    pub(super) fn is_lost(&self) -> bool {
        self.course.lost.is_told()
    }

    pub(super) fn lose(&self, why: &'static str) {
        // An attempt that ends its own lease has not lost it.
        if self.has_returned() {
            return;
        }
        if self.course.lost.tell() {
            self.count(telemetry::lease_lost);
            tracing::error!(
                tool = &*self.call.tool,
                token = self.lease.token,
                why,
                "a running call has lost its lease; its result will not be recorded"
            );
        }
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

    fn renewed(&self, asked: Instant) {
        let mut ends = lock(&self.ends);
        *ends = (*ends).max(asked + self.terms.lease);
    }
}
