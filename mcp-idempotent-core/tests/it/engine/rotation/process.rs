//! A store as one process sees it, which can be stopped at some points.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Record, Store, StoreError, TransactionStore,
    store::{
        CallInfo, Claim, Claimed, Completion, End, Ended, Inspected, Lease, LeaseEnd, Reach,
        StoreErrorKind,
    },
};
use tokio::sync::Notify;

use super::sides::Effects;

/// A store of a process that can be stopped at some points. There it gets no answer until it may go on.
#[derive(Clone)]
pub(in crate::engine) struct Ends<S> {
    store: S,
    /// Before something is claimed.
    pub(in crate::engine) claiming: Arc<Point>,
    /// Before a lease is completed.
    pub(in crate::engine) completing: Arc<Point>,
    /// After a lease was completed.
    pub(in crate::engine) completed: Arc<Point>,
    /// Before a transaction is ended.
    pub(in crate::engine) ending: Arc<Point>,
    /// After a transaction was ended.
    pub(in crate::engine) ended: Arc<Point>,
    /// Whether the claims of witnesses fail: of any record but the first in `claims`.
    pub(in crate::engine) witnesses_fail: Arc<AtomicBool>,
    /// Everything that was claimed as a lease.
    pub(in crate::engine) claims: Arc<Mutex<Vec<Claim>>>,
}

impl<S> Ends<S> {
    pub(in crate::engine) fn new(store: S) -> Self {
        Self {
            store,
            claiming: Arc::default(),
            completing: Arc::default(),
            completed: Arc::default(),
            ending: Arc::default(),
            ended: Arc::default(),
            witnesses_fail: Arc::default(),
            claims: Arc::default(),
        }
    }
}

#[derive(Default)]
pub(in crate::engine) struct Point {
    set: AtomicBool,
    reached: AtomicBool,
    go: Notify,
}

impl Point {
    pub(in crate::engine) fn set(&self) {
        self.set.store(true, Ordering::SeqCst);
    }

    pub(in crate::engine) fn is_reached(&self) -> bool {
        self.reached.load(Ordering::SeqCst)
    }

    /// Lets a call that is stopped here go on, and stops no other.
    pub(in crate::engine) fn go(&self) {
        self.set.store(false, Ordering::SeqCst);
        self.go.notify_one();
    }

    async fn pass(&self) {
        if self.set.load(Ordering::SeqCst) {
            self.reached.store(true, Ordering::SeqCst);
            self.go.notified().await;
        }
    }
}

impl<S: Store> Store for Ends<S> {
    fn reach(&self) -> Reach {
        self.store.reach()
    }
    fn transaction_limit(&self) -> Option<Duration> {
        self.store.transaction_limit()
    }
    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        self.store.look_up(claim).await
    }
    async fn inspect(&self, claim: &Claim) -> Result<Inspected, StoreError> {
        self.store.inspect(claim).await
    }
    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        self.claiming.pass().await;
        let is_mark = {
            let mut claims = self.claims.lock().unwrap();
            claims.push(claim.clone());
            claims[0].id != claim.id
        };
        if is_mark && self.witnesses_fail.load(Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "away"));
        }
        self.store.claim(claim).await
    }
    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        self.store.take_over(claim, token).await
    }
    async fn renew(&self, lease: &Lease, period: Duration) -> Result<LeaseEnd, StoreError> {
        self.store.renew(lease, period).await
    }
    async fn complete(&self, lease: &Lease, with: Completion) -> Result<LeaseEnd, StoreError> {
        self.completing.pass().await;
        let completed = self.store.complete(lease, with).await;
        self.completed.pass().await;
        completed
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

impl<S: TransactionStore> TransactionStore for Ends<S> {
    type Connection = S::Connection;
    type Transaction = S::Transaction;

    async fn begin(
        &self,
        call: &CallInfo,
        claim: Option<&Claim>,
    ) -> Result<Claimed<S::Transaction>, StoreError> {
        self.store.begin(call, claim).await
    }

    async fn end(&self, transaction: S::Transaction, claim: Option<&Claim>, end: End) -> Ended {
        self.ending.pass().await;
        let ended = self.store.end(transaction, claim, end).await;
        self.ended.pass().await;
        ended
    }
}

impl<S: Effects> Effects for Ends<S> {
    fn write(connection: &mut Self::Connection) -> BoxFuture<'_, ()> {
        S::write(connection)
    }

    fn count(connection: &mut Self::Connection) -> BoxFuture<'_, i64> {
        S::count(connection)
    }
}
