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
pub(super) struct Ticket {
    cancelled: CancellationToken,
    /// The call's id at the server, if it was sent.
    sent_as: OnceLock<u64>,
    listener: Option<Listener>,
}

impl Ticket {
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

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("sent_as", &self.sent_as)
            .finish_non_exhaustive()
    }
}

/// Tickets by request id, or by anything else that tells requests apart.
#[derive(Debug)]
pub(super) struct Tickets<I>(Mutex<HashMap<I, Arc<Ticket>>>);

impl<I> Default for Tickets<I> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<I: Hash + Eq> Tickets<I> {
    pub(super) fn insert(&self, id: I, ticket: &Arc<Ticket>) {
        self.lock().insert(id, Arc::clone(ticket));
    }

    pub(super) fn take(&self, id: &I) -> Option<Arc<Ticket>> {
        self.lock().remove(id)
    }

    /// Removes a ticket, unless the client has used its id again.
    pub(super) fn end(&self, id: &I, ticket: &Arc<Ticket>) {
        let mut tickets = self.lock();
        if tickets.get(id).is_some_and(|it| Arc::ptr_eq(it, ticket)) {
            tickets.remove(id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<I, Arc<Ticket>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
