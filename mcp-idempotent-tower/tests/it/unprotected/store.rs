//! A store that can be away for claims, and counts what it is asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use mcp_idempotent_tower::core::Record;
use mcp_idempotent_tower::{
    SqliteStore, Store, TransactionStore,
    store::{
        CallInfo, Claim, Claimed, Completion, End, Ended, Inspected, Lease, LeaseEnd, Reach,
        StoreError, StoreErrorKind,
    },
};

#[derive(Clone)]
pub(super) struct Flaky {
    pub(super) store: SqliteStore,
    /// Claims and look-ups fail; transactions without a claim do not.
    pub(super) is_away: Arc<AtomicBool>,
    pub(super) renewals: Arc<AtomicU32>,
}

impl Flaky {
    pub(super) fn new(store: SqliteStore) -> Self {
        Self {
            store,
            is_away: Arc::default(),
            renewals: Arc::default(),
        }
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.is_away.load(SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "away"));
        }
        Ok(())
    }
}

impl Store for Flaky {
    fn reach(&self) -> Reach {
        self.store.reach()
    }

    fn transaction_limit(&self) -> Option<Duration> {
        self.store.transaction_limit()
    }

    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        self.check()?;
        self.store.look_up(claim).await
    }

    async fn inspect(&self, claim: &Claim) -> Result<Inspected, StoreError> {
        self.check()?;
        self.store.inspect(claim).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        self.check()?;
        self.store.claim(claim).await
    }

    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        self.check()?;
        self.store.take_over(claim, token).await
    }

    async fn renew(&self, lease: &Lease, period: Duration) -> Result<LeaseEnd, StoreError> {
        self.renewals.fetch_add(1, SeqCst);
        self.store.renew(lease, period).await
    }

    async fn complete(&self, lease: &Lease, done: Completion) -> Result<LeaseEnd, StoreError> {
        self.store.complete(lease, done).await
    }

    async fn release(&self, lease: &Lease, keep: Duration) -> Result<LeaseEnd, StoreError> {
        self.store.release(lease, keep).await
    }

    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        self.store.abandon(lease).await
    }

    async fn has_unsettled(&self, age: Duration) -> Result<bool, StoreError> {
        self.store.has_unsettled(age).await
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        self.store.sweep(limit).await
    }
}

impl TransactionStore for Flaky {
    type Connection = <SqliteStore as TransactionStore>::Connection;
    type Transaction = <SqliteStore as TransactionStore>::Transaction;

    async fn begin(
        &self,
        call: &CallInfo,
        claim: Option<&Claim>,
    ) -> Result<Claimed<Self::Transaction>, StoreError> {
        if claim.is_some() {
            self.check()?;
        }
        self.store.begin(call, claim).await
    }

    async fn end(&self, transaction: Self::Transaction, claim: Option<&Claim>, end: End) -> Ended {
        self.store.end(transaction, claim, end).await
    }
}
