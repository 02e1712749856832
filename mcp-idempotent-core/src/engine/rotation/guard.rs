//! The guard: a lease under a second id of a call, which is completed together with its record. The id
//! is the one under the previous secret, or the one that equal calls under other keys share.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::{runtime::Handle, time::sleep};

use super::rules::{GuardOf, GuardRules};
use crate::{
    engine::lease::Held,
    error::CommitOutcome,
    fingerprint::{Fingerprint, Identity, RecordId},
    record::{Record, RecordState, Timestamp},
    store::{
        Claim, Claimed, Completion, Ended, Lease, LeaseEnd, Store, StoreError, StoreErrorKind,
    },
};

/// The pause between two tries to mark a guard, while the store fails.
const PAUSE: Duration = Duration::from_millis(500);

/// What was found under the guard's id when it was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Found {
    Free,
    /// A guard in doubt that has a mark, so it guarded a transaction. Nothing was committed, unless
    /// the new id says so.
    Marked,
    /// In doubt: an attempt may have acted.
    InDoubt,
}

/// What an attempt has to know about its guard.
#[derive(Clone)]
pub(in crate::engine) struct Under {
    pub(in crate::engine) guard: Arc<Held>,
    pub(in crate::engine) id: RecordId,
    pub(in crate::engine) fingerprint: Fingerprint,
    pub(in crate::engine) origin: i64,
    /// An earlier attempt may have acted.
    pub(in crate::engine) in_doubt: bool,
}

/// How a guard ends.
#[derive(Debug)]
pub(in crate::engine) enum GuardEnd {
    /// The store completed it together with the record of the new id.
    Completed,
    /// The new id already had this record.
    Copy {
        response: Option<Bytes>,
        at: Timestamp,
    },
    /// Nothing was recorded, and the key is free.
    Release { acted: bool },
    /// The call is in doubt.
    Abandon,
    /// In doubt for processes that only know the previous secret. The new id decides.
    AbandonMarked,
}

impl GuardEnd {
    /// How a transaction's guard ends.
    pub(in crate::engine) fn after(ended: &Ended, recording: bool) -> Self {
        match ended {
            Ended::AsAsked(_) if recording => Self::Completed,
            Ended::AsAsked(_) => Self::Release { acted: false },
            // The handler's writes are rolled back, but its error may have been recorded.
            Ended::Aborted(error) if error.outcome() != CommitOutcome::NotCommitted => {
                Self::AbandonMarked
            }
            Ended::Aborted(_) => Self::Release { acted: false },
            Ended::EndedByHandler => Self::Abandon,
            Ended::Lost(_) | Ended::LostInProgress | Ended::Fenced | Ended::Unknown(_) => {
                Self::AbandonMarked
            }
        }
    }
}

/// A call's guard. If it is dropped, it leaves its id in the safest state it can.
pub(in crate::engine) struct Guard {
    leases: Option<Box<dyn EndGuard>>,
    pub(in crate::engine) under: Under,
    rules: GuardRules,
    found: Found,
    /// The record in doubt that it was taken over from.
    pub(super) in_doubt: Option<Record>,
    may_have_acted: bool,
    committing: bool,
}

impl Guard {
    pub(super) fn new<S: Store>(leases: GuardLeases<S>, under: Under, found: Found) -> Self {
        Self {
            rules: leases.rules,
            leases: Some(Box::new(leases)),
            under,
            found,
            in_doubt: None,
            may_have_acted: false,
            committing: false,
        }
    }

    /// The new id is claimed. So any interrupted attempt's transaction has ended without a record:
    /// it committed nothing.
    pub(in crate::engine) fn claimed(&mut self) {
        if self.found == Found::Marked {
            self.found = Found::Free;
        }
    }

    /// The record in doubt that it was taken over from.
    pub(in crate::engine) fn in_doubt(&self) -> Option<Record> {
        self.in_doubt.clone()
    }

    /// The call in doubt was found not to have acted.
    pub(in crate::engine) fn verified(&mut self) {
        self.found = Found::Free;
    }

    /// The handler starts now.
    pub(in crate::engine) fn started(&mut self) {
        self.may_have_acted = !self.rules.transaction;
    }

    /// The transaction is being ended. Until there is an answer, its outcome is unknown.
    pub(in crate::engine) fn committing(&mut self) {
        self.committing = true;
        self.under.guard.returned();
    }

    pub(in crate::engine) async fn lost(&self) {
        self.under.guard.lost().await;
    }

    /// Lets the store complete the guard together with the record.
    pub(in crate::engine) fn join(&self, completion: &mut Completion) {
        completion.guard = Some(self.under.guard.lease.clone());
        completion.guard_retention = self.is_of_equal_calls().then_some(self.rules.retention);
    }

    pub(in crate::engine) fn is_of_equal_calls(&self) -> bool {
        self.rules.of == GuardOf::EqualCalls
    }

    pub(in crate::engine) async fn end(mut self, end: GuardEnd) {
        if let Some(leases) = self.leases.take() {
            leases.end(end).await;
        }
    }

    /// Gives the guard's id the same record that was found under the call's own.
    pub(in crate::engine) async fn settle(self, record: &Record, identity: &Identity) {
        let end = match &record.state {
            RecordState::Completed { response, at } if identity.is_of(record.fingerprint) => {
                GuardEnd::Copy {
                    response: response.clone(),
                    at: *at,
                }
            }
            RecordState::InDoubt { .. } if self.is_of_equal_calls() => GuardEnd::Abandon,
            _ => self.as_found(),
        };
        self.end(end).await;
    }

    fn as_found(&self) -> GuardEnd {
        if self.committing || self.found == Found::Marked {
            GuardEnd::AbandonMarked
        } else if self.may_have_acted || self.found == Found::InDoubt {
            GuardEnd::Abandon
        } else {
            GuardEnd::Release { acted: false }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let end = self.as_found();
        if let Some(leases) = self.leases.take()
            && let Ok(runtime) = Handle::try_current()
        {
            drop(runtime.spawn(leases.end(end)));
        }
    }
}

/// A [`GuardLeases`] for any type of store.
trait EndGuard: Send + Sync {
    fn end(self: Box<Self>, end: GuardEnd) -> BoxFuture<'static, ()>;
}

/// The leases of a guard.
pub(super) struct GuardLeases<S: Store> {
    pub(super) held: Arc<Held<Arc<S>>>,
    pub(super) mark: Option<Arc<Held<Arc<S>>>>,
    pub(super) rules: GuardRules,
}

impl<S: Store> EndGuard for GuardLeases<S> {
    fn end(self: Box<Self>, end: GuardEnd) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // A renewal that meets the ended lease is no loss.
            self.held.returned();
            let ended = self.end_lease(end).await;
            self.held.end();
            if let Some(mark) = &self.mark {
                mark.end();
            }
            if let Err(error) = ended {
                let error = &error as &dyn std::error::Error;
                match self.rules.of {
                    GuardOf::PreviousSecret => tracing::warn!(
                        error,
                        "the record under the previous secret could not be written; processes with only that secret will answer that the outcome is unknown"
                    ),
                    GuardOf::EqualCalls => tracing::warn!(
                        error,
                        "the record that equal calls share could not be written; such calls under other keys are held back until its lease ends"
                    ),
                }
            }
        })
    }
}

impl<S: Store> GuardLeases<S> {
    async fn end_lease(&self, end: GuardEnd) -> Result<(), StoreError> {
        let lease = &self.held.lease;
        let store = &self.held.store;
        match end {
            GuardEnd::Completed => self.release_mark().await,
            GuardEnd::Copy { response, at } => {
                // A renewal returns the store's time.
                if let LeaseEnd::Done(now) = store.renew(lease, self.rules.terms.lease).await? {
                    let age = now.as_micros().saturating_sub(at.as_micros());
                    let age = Duration::from_micros(u64::try_from(age).unwrap_or(0));
                    let left = self.rules.retention.saturating_sub(age);
                    let mut completion = Completion::new(response, left);
                    completion.tombstone = self.rules.tombstone;
                    // If it is fenced, its present holder finds the record too.
                    store.complete(lease, completion).await?;
                }
                self.release_mark().await
            }
            GuardEnd::Release { acted } => {
                let keep = if acted || lease.attempts > 1 {
                    self.rules.retention
                } else {
                    Duration::ZERO
                };
                store.release(lease, keep).await?;
                self.release_mark().await
            }
            // The handler ended its transaction itself and may have committed. A guard of a
            // transaction leaves no doubt, so a result that is not kept holds equal calls back.
            GuardEnd::Abandon if self.rules.transaction && self.rules.of == GuardOf::EqualCalls => {
                let unknown = Completion::new(None, self.rules.retention);
                store.complete(lease, unknown).await.map(drop)
            }
            // The mark goes first: without a mark the guard is in doubt, whatever happens next.
            GuardEnd::Abandon => {
                self.release_mark().await?;
                store.abandon(lease).await.map(drop)
            }
            GuardEnd::AbandonMarked => match store.abandon(lease).await? {
                LeaseEnd::Done(_) => Ok(()),
                // It has ended some other way, so the mark says nothing any more.
                LeaseEnd::Fenced => self.release_mark().await,
            },
        }
    }

    async fn release_mark(&self) -> Result<(), StoreError> {
        let Some(mark) = &self.mark else {
            return Ok(());
        };
        let lease = &mark.lease;
        mark.store.release(lease, Duration::ZERO).await.map(drop)
    }
}

/// Claims a mark. `None` if there is one: the answer to an earlier claim was lost.
///
/// # Errors
///
/// There may be no mark. Without one, a crash would leave the call in doubt.
pub(super) async fn claim_mark<S: Store>(
    store: &S,
    mark: &Claim,
) -> Result<Option<Lease>, StoreError> {
    match store.claim(mark).await? {
        Claimed::New(lease) => Ok(Some(lease)),
        Claimed::Found(_) => Ok(None),
        Claimed::InProgress | Claimed::Conflict => Err(StoreError::new(
            StoreErrorKind::Busy,
            "the mark of a guard could not be claimed",
        )),
    }
}

/// Leaves a guard in doubt whose interrupted transaction had a mark. It first marks the guard, for as
/// long as its lease lasts: without a mark the call would stay in doubt, although nothing was
/// committed.
pub(super) async fn abandon_marked<S: Store>(held: Arc<Held<Arc<S>>>, mark: Claim) {
    while !held.left().is_zero() {
        sleep(PAUSE).await;
        if claim_mark(&*held.store, &mark).await.is_ok() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_only_free_if_nothing_can_have_been_recorded() {
        let error = |outcome| {
            StoreError::new(StoreErrorKind::Unavailable, "the connection was lost")
                .with_outcome(outcome)
        };
        let ends = |ended, recording| GuardEnd::after(&ended, recording);
        for recording in [true, false] {
            let undone = Ended::Aborted(error(CommitOutcome::NotCommitted));
            assert!(matches!(ends(undone, recording), GuardEnd::Release { .. }));
            // The record of an error may have been committed after the rollback.
            let unclear = Ended::Aborted(error(CommitOutcome::Unknown));
            assert!(matches!(ends(unclear, recording), GuardEnd::AbandonMarked));
            let unknown = Ended::Unknown(error(CommitOutcome::Unknown));
            assert!(matches!(ends(unknown, recording), GuardEnd::AbandonMarked));
            assert!(matches!(
                ends(Ended::Fenced, recording),
                GuardEnd::AbandonMarked
            ));
            assert!(matches!(
                ends(Ended::EndedByHandler, recording),
                GuardEnd::Abandon
            ));
        }
        let at = Timestamp::from_micros(0);
        assert!(matches!(
            ends(Ended::AsAsked(at), true),
            GuardEnd::Completed
        ));
        assert!(matches!(
            ends(Ended::AsAsked(at), false),
            GuardEnd::Release { .. }
        ));
    }
}
