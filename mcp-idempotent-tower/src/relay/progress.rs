//! Progress of a running call, for all who asked for it: its own caller, and those that joined.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;
use mcp_idempotent_core::RecordId;
use serde_json::value::RawValue;

use super::message::Id;
use crate::raw::{edited, range};

/// Who listens to which call.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The running calls, by the token that the server was given.
    running: HashMap<u64, RecordId>,
    listeners: HashMap<RecordId, Vec<Arc<Id>>>,
}

impl Progress {
    /// A caller that asks for progress with this token.
    pub(super) fn listener(self: &Arc<Self>, token: Id) -> Listener {
        Listener {
            progress: Arc::clone(self),
            token: Arc::new(token),
            record: OnceLock::new(),
        }
    }

    /// The server's notification, for each listener. `None` if it is not about one of the relay's
    /// calls.
    pub(super) fn heard(&self, line: &Bytes, token: &RawValue) -> Option<Vec<Bytes>> {
        let own = Id::of(token)?.number()?;
        let state = self.state();
        let listeners = state.listeners.get(state.running.get(&own)?);
        let at = range(line, token);
        let told = |token: &Arc<Id>| edited(line, &mut [(at.clone(), token.spelt())]);
        Some(listeners.into_iter().flatten().map(told).collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller that asked for progress. It listens until it is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    progress: Arc<Progress>,
    token: Arc<Id>,
    record: OnceLock<RecordId>,
}

impl Listener {
    /// Listens to the call of this record, no matter which caller runs it.
    pub(super) fn listen(&self, record: RecordId) {
        if self.record.set(record).is_ok() {
            let mut state = self.progress.state();
            let listeners = state.listeners.entry(record).or_default();
            listeners.push(Arc::clone(&self.token));
        }
    }

    /// The server runs this caller's call, under this token.
    pub(super) fn runs(&self, token: u64) -> Option<Running> {
        let record = *self.record.get()?;
        self.progress.state().running.insert(token, record);
        Some(Running {
            progress: Arc::clone(&self.progress),
            token,
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(record) = self.record.get() else {
            return;
        };
        let mut state = self.progress.state();
        if let Some(listeners) = state.listeners.get_mut(record) {
            listeners.retain(|token| !Arc::ptr_eq(token, &self.token));
            if listeners.is_empty() {
                state.listeners.remove(record);
            }
        }
    }
}

/// A call that the server runs with a progress token.
#[derive(Debug)]
pub(super) struct Running {
    progress: Arc<Progress>,
    token: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.progress.state().running.remove(&self.token);
    }
}
