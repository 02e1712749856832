//! A guard's witness: a second lease, which says that the guard guards a transaction.
//!
//! Its id is made from the guard's id and token. Nothing was committed under a guard in doubt that has one,
//! unless the call's record says so.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    engine::{Inner, lease::Held},
    fingerprint::{Fingerprint, RecordId},
    record::RecordState,
    store::{CallInfo, Claim, Claimed, Lease, Store, StoreError, StoreErrorKind},
};

/// The pause between two tries to claim a witness, while the store fails.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) fn witness_of(guarded: &Claim, token: i64) -> Claim {
    let id = RecordId::of_guard_witness(guarded.id, token);
    Claim {
        id,
        // It shares no lock with the call itself.
        fingerprint: Fingerprint::of_no_call(id),
        call: CallInfo::internal("witness"),
        key_prefix: None,
        ..guarded.clone()
    }
}

/// Claims a witness. `None` if there is one: the answer to an earlier claim was lost.
///
/// # Errors
///
/// There may be no witness. Without one, a crash would leave the call in doubt.
pub(super) async fn claim_witness<S: Store>(
    store: &S,
    witness: &Claim,
) -> Result<Option<Lease>, StoreError> {
    match store.claim(witness).await? {
        Claimed::New(lease) => Ok(Some(lease)),
        Claimed::Found(_) => Ok(None),
        Claimed::InProgress | Claimed::Conflict => Err(StoreError::new(
            StoreErrorKind::Busy,
            "the witness of a guard could not be claimed",
        )),
    }
}

/// Leaves a guard in doubt whose interrupted transaction had a witness. It first witnesses the guard, for as
/// long as its lease lasts: without a witness the call would stay in doubt, although nothing was
/// committed.
pub(super) async fn abandon_witnessed<S: Store>(held: Arc<Held<Arc<S>>>, witness: Claim) {
    while !held.left().is_zero() {
        sleep(PAUSE).await;
        if claim_witness(&*held.store, &witness).await.is_ok() {
            break;
        }
    }
    held.end();
    if let Err(error) = held.store.abandon(&held.lease).await {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "a guard could not be given back; its call can be retried when its lease ends"
        );
    }
}

impl<S: Store> Inner<S> {
    /// Removes the witness of a guard that was taken over, which is no longer needed.
    pub(super) async fn remove_witness(&self, witness: &Claim) {
        let removed = async {
            if let Some(record) = self.store.look_up(witness).await?
                && let RecordState::InDoubt { token, .. } = record.state
                && let Some(lease) = self.store.take_over(witness, token).await?
            {
                self.store.release(&lease, Duration::ZERO).await?;
            }
            Ok::<_, StoreError>(())
        };
        if let Err(error) = removed.await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the witness of an interrupted attempt could not be removed"
            );
        }
    }
}
