//! A store in memory that several engines share, and that fails when it is told to.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_core::{
    MemoryStore, Record, RecordId, StoreError,
    store::{
        Audit, Claim, Claimed, Completion, Lease, LeaseEnd, OperatorStore, Reach, RecordInfo,
        RecordQuery, Resolution, Resolved, Store, StoreErrorKind,
    },
};
use tokio::sync::watch;

/// What a store does when it is asked for something.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::engine) enum Fault {
    #[default]
    None,
    /// It answers with an error that may pass.
    Fails,
    /// It answers so after this time.
    FailsAfter(Duration),
    /// It does as asked once this fault has passed.
    Waits,
    /// It does as asked, and answers once this fault has passed.
    AnswersLate,
    /// It never answers, and does nothing.
    Swallows,
    /// A claim finds that somebody else holds the key.
    Held,
}

#[derive(Default)]
pub(in crate::engine) struct Switch(watch::Sender<Fault>);

impl Switch {
    pub(in crate::engine) fn set(&self, fault: Fault) {
        self.0.send_replace(fault);
    }

    async fn before(&self) -> Result<(), StoreError> {
        let mut fault = self.0.subscribe();
        loop {
            let now = *fault.borrow_and_update();
            match now {
                Fault::None | Fault::AnswersLate | Fault::Held => return Ok(()),
                Fault::Fails => {
                    return Err(StoreError::new(StoreErrorKind::Unavailable, "away"));
                }
                Fault::FailsAfter(time) => {
                    tokio::time::sleep(time).await;
                    return Err(StoreError::new(StoreErrorKind::Unavailable, "away"));
                }
                Fault::Waits => fault.changed().await.unwrap(),
                Fault::Swallows => std::future::pending().await,
            }
        }
    }

    async fn after(&self) {
        let mut fault = self.0.subscribe();
        fault
            .wait_for(|fault| !matches!(fault, Fault::AnswersLate))
            .await
            .unwrap();
    }
}

#[derive(Clone, Default)]
pub(in crate::engine) struct Faulty(Arc<Inner>);

#[derive(Default)]
pub(in crate::engine) struct Inner {
    memory: MemoryStore,
    pub(in crate::engine) look_up: Switch,
    pub(in crate::engine) claim: Switch,
    pub(in crate::engine) take_over: Switch,
    pub(in crate::engine) renew: Switch,
    pub(in crate::engine) complete: Switch,
    pub(in crate::engine) abandon: Switch,
    pub(in crate::engine) sweep: Switch,
    renewals: Mutex<HashMap<RecordId, usize>>,
    pub(in crate::engine) sweeps: AtomicUsize,
    /// How many records each sweep says it removed.
    pub(in crate::engine) swept: AtomicUsize,
}

impl std::ops::Deref for Faulty {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Faulty {
    /// How often the store was asked to renew any lease.
    pub(in crate::engine) fn renewals(&self) -> usize {
        self.renewals.lock().unwrap().values().sum()
    }

    pub(in crate::engine) fn renewals_of(&self, id: RecordId) -> usize {
        self.renewals.lock().unwrap().get(&id).copied().unwrap_or(0)
    }

    /// How many records there are.
    pub(in crate::engine) fn len(&self) -> usize {
        self.memory.len()
    }

    pub(in crate::engine) fn sweeps(&self) -> usize {
        self.sweeps.load(Ordering::SeqCst)
    }
}

impl Store for Faulty {
    fn reach(&self) -> Reach {
        Reach::Process
    }

    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        self.look_up.before().await?;
        self.memory.look_up(claim).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        self.claim.before().await?;
        if matches!(*self.claim.0.borrow(), Fault::Held) {
            return Ok(Claimed::InProgress);
        }
        let claimed = self.memory.claim(claim).await;
        self.claim.after().await;
        claimed
    }

    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        self.take_over.before().await?;
        self.memory.take_over(claim, token).await
    }

    async fn renew(&self, lease: &Lease, period: Duration) -> Result<LeaseEnd, StoreError> {
        *self.renewals.lock().unwrap().entry(lease.id).or_default() += 1;
        self.renew.before().await?;
        let renewed = self.memory.renew(lease, period).await;
        self.renew.after().await;
        renewed
    }

    async fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> Result<LeaseEnd, StoreError> {
        self.complete.before().await?;
        let completed = self.memory.complete(lease, completion).await;
        self.complete.after().await;
        completed
    }

    async fn release(&self, lease: &Lease, keep_origin: Duration) -> Result<LeaseEnd, StoreError> {
        self.memory.release(lease, keep_origin).await
    }

    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        self.abandon.before().await?;
        self.memory.abandon(lease).await
    }

    async fn has_unsettled(&self, age: Duration) -> Result<bool, StoreError> {
        self.memory.has_unsettled(age).await
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        self.sweeps.fetch_add(1, Ordering::SeqCst);
        self.sweep.before().await?;
        let told = self.swept.load(Ordering::SeqCst) as u64;
        let swept = self.memory.sweep(limit).await?;
        Ok(swept.max(told.min(limit.into())))
    }
}

impl OperatorStore for Faulty {
    async fn list(&self, query: &RecordQuery) -> Result<Vec<RecordInfo>, StoreError> {
        self.memory.list(query).await
    }

    async fn show(&self, id: RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.memory.show(id).await
    }

    async fn resolve(
        &self,
        id: RecordId,
        token: i64,
        resolution: &Resolution,
        audit: &Audit,
    ) -> Result<Resolved, StoreError> {
        self.memory.resolve(id, token, resolution, audit).await
    }
}
