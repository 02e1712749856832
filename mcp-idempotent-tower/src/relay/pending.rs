//! A client's protected call, while the client waits for it.

use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use mcp_idempotent_core::RecordId;
use tokio_util::sync::CancellationToken;

use super::progress::{Listener, Running};

/// A protected call that its client waits for.
#[derive(Default)]
pub(super) struct PendingCall {
    cancelled: CancellationToken,
    /// The call's id at the server, if it was sent.
    sent_as: OnceLock<u64>,
    listener: Option<Listener>,
}

impl PendingCall {
    pub(super) fn new(listener: Option<Listener>) -> Self {
        Self {
            listener,
            ..Self::default()
        }
    }

    /// Which record the call belongs to.
    pub(super) fn identified(&self, record: RecordId) {
        if let Some(listener) = &self.listener {
            listener.listen(record);
        }
    }

    /// The call is sent to the server under this id. Its progress is heard while the returned value
    /// lives.
    pub(super) fn sent(&self, id: u64) -> Option<Running> {
        let _ = self.sent_as.set(id);
        self.listener.as_ref()?.runs(id)
    }

    pub(super) fn sent_as(&self) -> Option<u64> {
        self.sent_as.get().copied()
    }

    pub(super) fn cancel(&self) {
        self.cancelled.cancel();
    }

    /// Completes when the client no longer waits.
    pub(super) async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }
}

impl fmt::Debug for PendingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCall")
            .field("sent_as", &self.sent_as)
            .finish_non_exhaustive()
    }
}

/// Pending calls by request id, or by anything else that tells requests apart.
#[derive(Debug)]
pub(super) struct PendingCalls<I>(Mutex<HashMap<I, Arc<PendingCall>>>);

impl<I> Default for PendingCalls<I> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<I: Hash + Eq> PendingCalls<I> {
    pub(super) fn insert(&self, id: I, call: &Arc<PendingCall>) {
        self.lock().insert(id, Arc::clone(call));
    }

    pub(super) fn take(&self, id: &I) -> Option<Arc<PendingCall>> {
        self.lock().remove(id)
    }

    /// Removes a call, unless the client has used its id again.
    pub(super) fn end(&self, id: &I, call: &Arc<PendingCall>) {
        let mut pending = self.lock();
        if pending.get(id).is_some_and(|it| Arc::ptr_eq(it, call)) {
            pending.remove(id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<I, Arc<PendingCall>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
