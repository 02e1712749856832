//! A store that fails when it is told to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Record, Store, StoreError, TransactionStore,
    error::CommitOutcome,
    store::{
        CallInfo, Claim, Claimed, Completion, End, Ended, ForeignTransactions, Inspected, Lease,
        LeaseEnd, Reach, StoreErrorKind,
    },
};

/// What fails in a [`FaultyStore`]. Clones are one switch.
#[derive(Debug, Clone, Default)]
pub struct StoreFaults(Arc<AtomicU8>);

const AWAY: u8 = 1;
const ENDS: u8 = 2;

impl StoreFaults {
    /// Nothing fails yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on the store cannot be reached. Nothing is read or written.
    pub fn be_away(&self) {
        self.0.store(AWAY, Ordering::SeqCst);
    }

    /// From now on no call can be recorded: a claim is granted, and its end fails. A transaction is rolled
    /// back, and its caller is told that this is not known.
    pub fn fail_ends(&self) {
        self.0.store(ENDS, Ordering::SeqCst);
    }

    /// From now on the store works.
    pub fn mend(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    fn check(&self, faults: &[u8]) -> Result<(), StoreError> {
        if faults.contains(&self.0.load(Ordering::SeqCst)) {
            return Err(StoreError::new(
                StoreErrorKind::Unavailable,
                "the test has taken the store away",
            ));
        }
        Ok(())
    }
}

/// A store in front of another one, which fails as its [`StoreFaults`] say.
#[derive(Debug, Clone)]
pub struct FaultyStore<S> {
    store: S,
    faults: StoreFaults,
}

impl<S> FaultyStore<S> {
    /// A store that is `store` as long as nothing is to fail.
    #[must_use]
    pub const fn new(store: S, faults: StoreFaults) -> Self {
        Self { store, faults }
    }

    /// The store behind it.
    #[must_use]
    pub const fn inner(&self) -> &S {
        &self.store
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for FaultyStore<S> {
    fn reach(&self) -> Reach {
        self.store.reach()
    }

    fn transaction_limit(&self) -> Option<Duration> {
        self.store.transaction_limit()
    }

    /// The author's own transaction goes past this store, so it has no faults.
    fn foreign_transactions(&self) -> Option<&dyn ForeignTransactions> {
        self.store.foreign_transactions()
    }

    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        self.faults.check(&[AWAY])?;
        self.store.look_up(claim).await
    }

    async fn inspect(&self, claim: &Claim) -> Result<Inspected, StoreError> {
        self.faults.check(&[AWAY])?;
        self.store.inspect(claim).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        self.faults.check(&[AWAY])?;
        self.store.claim(claim).await
    }

    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        self.faults.check(&[AWAY])?;
        self.store.take_over(claim, token).await
    }

    async fn renew(&self, lease: &Lease, period: Duration) -> Result<LeaseEnd, StoreError> {
        self.faults.check(&[AWAY])?;
        self.store.renew(lease, period).await
    }

    async fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> Result<LeaseEnd, StoreError> {
        self.faults.check(&[AWAY, ENDS])?;
        self.store.complete(lease, completion).await
    }

    async fn release(&self, lease: &Lease, keep_origin: Duration) -> Result<LeaseEnd, StoreError> {
        self.faults.check(&[AWAY, ENDS])?;
        self.store.release(lease, keep_origin).await
    }

    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        self.faults.check(&[AWAY, ENDS])?;
        self.store.abandon(lease).await
    }

    async fn has_unsettled(&self, age: Duration) -> Result<bool, StoreError> {
        self.faults.check(&[AWAY])?;
        self.store.has_unsettled(age).await
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        self.faults.check(&[AWAY])?;
        self.store.sweep(limit).await
    }

    async fn sweep_part(&self, limit: u32) -> Result<u64, StoreError> {
        self.faults.check(&[AWAY])?;
        self.store.sweep_part(limit).await
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: TransactionStore> TransactionStore for FaultyStore<S> {
    type Connection = S::Connection;
    type Transaction = S::Transaction;

    async fn begin(
        &self,
        call: &CallInfo,
        claim: Option<&Claim>,
    ) -> Result<Claimed<S::Transaction>, StoreError> {
        self.faults.check(&[AWAY])?;
        self.store.begin(call, claim).await
    }

    fn session_over(&self, transaction: &S::Transaction) -> Option<BoxFuture<'static, ()>> {
        self.store.session_over(transaction)
    }

    async fn end(&self, transaction: S::Transaction, claim: Option<&Claim>, end: End) -> Ended {
        if let Err(error) = self.faults.check(&[AWAY, ENDS]) {
            drop(transaction);
            return Ended::Unknown(error.with_outcome(CommitOutcome::Unknown));
        }
        self.store.end(transaction, claim, end).await
    }
}
