//! The trace of the last sweep, by which an operator sees whether anybody sweeps.
//!
//! It is a record of the engine's own: a lease that nobody completes, and that each sweep takes anew. So it needs no
//! table and no right beyond those of calls, and works in every store. It is written at most once a minute, however
//! many processes sweep.

use std::time::Duration;

use super::Engine;
use crate::{
    fingerprint::{Fingerprint, RecordId},
    record::{Record, RecordState, Timestamp},
    store::{CallInfo, Claim, Claimed, OperatorStore, Store, StoreError},
};

/// For this long after a sweep, other sweeps write nothing.
const LEASE: Duration = Duration::from_secs(60);

/// Practically for ever, but without overflow in any store.
const KEPT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl<S: Store> Engine<S> {
    /// Says that a sweep has ended just now, for [`last_sweep`](Self::last_sweep). The engine's own sweeps say so
    /// themselves; call this after one by [`Store::sweep`].
    ///
    /// Nothing depends on it: if the store cannot be written to, that is logged at level `DEBUG`.
    pub async fn note_sweep(&self) {
        note(&*self.inner.store).await;
    }
}

impl<S: OperatorStore> Engine<S> {
    /// When a sweep of this store last ended, by whatever process and for whatever application, by the store's clock.
    /// Sweeps that end within a minute of another may not count. `None` if none has ended yet.
    ///
    /// # Errors
    ///
    /// The store could not be reached. Nothing was changed.
    pub async fn last_sweep(&self) -> Result<Option<Timestamp>, StoreError> {
        let trace = self.inner.store.show(RecordId::of_last_sweep()).await?;
        let lease_until = trace.and_then(|trace| trace.lease_until);
        let lease = i64::try_from(LEASE.as_micros()).unwrap_or_default();
        Ok(lease_until.map(|until| Timestamp::from_micros(until.as_micros() - lease)))
    }
}

pub(super) async fn note<S: Store>(store: &S) {
    if let Err(error) = try_note(store).await {
        tracing::debug!(
            error = &error as &dyn std::error::Error,
            "the time of a sweep could not be written"
        );
    }
}

async fn try_note<S: Store>(store: &S) -> Result<(), StoreError> {
    let id = RecordId::of_last_sweep();
    let mut claim = Claim::new(id, Fingerprint::of_no_call(id), CallInfo::internal("sweep"));
    (claim.lease, claim.in_doubt_retention) = (LEASE, KEPT);
    if let Claimed::Found(Record {
        state: RecordState::InDoubt { token, .. },
        ..
    }) = store.claim(&claim).await?
    {
        // If another sweep is faster, it has written the same.
        store.take_over(&claim, token).await?;
    }
    Ok(())
}
