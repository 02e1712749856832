//! Stands in for a lease in an unprotected call.

use std::{
    any::Any,
    sync::{Arc, Mutex},
};

use mcp_idempotent_core::{
    BeginError, Borrowed, CallInfo, DownstreamKey, Interrupted, OnDoubt, Refusal, ResultKind,
    Store, TransactionStore,
    engine::{LateTransaction, Left},
    fingerprint::DownstreamSeed,
    refusal,
    store::End,
};

/// Stands in for a lease in the attempt of an unprotected call.
pub(super) struct Unleased {
    seed: DownstreamSeed,
    /// An `Arc` of the store.
    store: Mutex<Box<dyn Any + Send>>,
    call: CallInfo,
    transaction: LateTransaction,
}

/// Nothing can be begun under it once this is dropped.
pub(super) struct ClosedOnDrop(pub(super) Arc<Unleased>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        drop(self.0.transaction.close());
    }
}

impl Unleased {
    pub(super) fn new<S: Store>(store: &Arc<S>, call: CallInfo) -> Arc<Self> {
        Arc::new(Self {
            seed: DownstreamSeed::unique(),
            store: Mutex::new(Box::new(Arc::clone(store))),
            call,
            transaction: LateTransaction::default(),
        })
    }

    /// Resolves when the handler must be dropped; see [`LateTransaction::over`].
    pub(super) async fn over(&self) -> Interrupted {
        self.transaction.over().await
    }

    /// Resolves when the handler should stop.
    pub(super) async fn told_to_stop(&self) {
        self.transaction.told_to_stop().await;
    }

    /// Different for every call.
    pub(super) fn downstream_key(&self, step: &str) -> DownstreamKey {
        self.seed.key(step)
    }

    pub(super) async fn begin<S: TransactionStore>(&self) -> Result<Borrowed<S>, BeginError> {
        let store = {
            let store = self.store.lock().map_err(|_| BeginError::Ended)?;
            store.downcast_ref::<Arc<S>>().cloned()
        };
        let store = store.ok_or(BeginError::AnotherStore)?;
        self.transaction.begin(&store, &self.call).await
    }

    /// Ends the handler's transaction: it commits if the handler succeeded.
    pub(super) async fn end(&self, kind: ResultKind) -> Option<Refusal> {
        match self.transaction.close() {
            Left::Nothing => None,
            Left::StillHeld => Some(refusal::still_held(OnDoubt::Fail)),
            Left::Transaction(transaction) => {
                let commits = kind.is_success();
                let end = if commits {
                    End::CommitUnrecorded
                } else {
                    End::RollBack
                };
                refusal::of_unrecorded(transaction.end(end).await, commits, true)
            }
        }
    }
}
