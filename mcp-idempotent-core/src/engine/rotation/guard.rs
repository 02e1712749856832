//! The guard: a lease under the id that a call has under the previous secret.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::{runtime::Handle, time::sleep};

use super::previous::kept;
use crate::{
    engine::{
        lease::{Held, Terms},
        plan,
    },
    fingerprint::{Fingerprint, Identity, RecordId},
    policy::{OnDoubt, Policy},
    record::{Record, RecordState, Timestamp},
    store::{Completion, Ended, Lease, LeaseEnd, Store, StoreError},
};

/// The pause between two attempts to complete a guard, while the store fails.
const PAUSE: Duration = Duration::from_millis(500);

/// What a guard has to know about its call.
#[derive(Clone, Copy)]
pub(super) struct GuardRules {
    pub(super) terms: Terms,
    pub(super) on_doubt: OnDoubt,
    /// The handler writes through the transaction that makes the record.
    pub(super) transaction: bool,
    pub(super) retention: Duration,
    pub(super) tombstone: Duration,
}

impl GuardRules {
    pub(super) fn new(
        policy: &Policy,
        identity: &Identity,
        on_doubt: OnDoubt,
        transaction: bool,
        limit: Option<Duration>,
    ) -> Self {
        // The guard must outlast the lease that it guards, and any transaction that blocks its
        // renewal.
        let lease = policy.lease.saturating_mul(2);
        let lease = lease.max(limit.unwrap_or_default().saturating_mul(4));
        let retention = plan::retention(policy, identity.kind);
        Self {
            terms: Terms {
                lease,
                heartbeat: policy.heartbeat_period(),
            },
            on_doubt,
            transaction,
            retention,
            tombstone: kept(policy, identity) - retention,
        }
    }
}

/// What was found under the previous id when the guard was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Free,
    /// A guard in doubt that has a mark, so it guarded a transaction. Nothing was committed, unless
    /// the new id says so.
    Marked,
    /// In doubt: an attempt may have acted.
    InDoubt,
}

/// What an attempt has to know about its guard.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Under {
    pub(in crate::engine) id: RecordId,
    pub(in crate::engine) fingerprint: Fingerprint,
    pub(in crate::engine) origin: i64,
    /// An earlier attempt may have acted.
    pub(in crate::engine) in_doubt: bool,
}

/// How a guard ends.
#[derive(Debug)]
pub(in crate::engine) enum GuardEnd {
    /// The new id got this record.
    Complete(Completion),
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
    pub(in crate::engine) fn after(ended: &Ended, recorded: Option<Completion>) -> Self {
        match (ended, recorded) {
            (Ended::AsAsked(_), Some(completion)) => Self::Complete(completion),
            (Ended::AsAsked(_), None) | (Ended::Aborted(_), _) => Self::Release { acted: false },
            (Ended::EndedByHandler, _) => Self::Abandon,
            (Ended::Lost(_) | Ended::LostInProgress | Ended::Fenced | Ended::Unknown(_), _) => {
                Self::AbandonMarked
            }
        }
    }
}

/// A call's guard. If it is dropped, it leaves the previous id in the safest state it can.
pub(in crate::engine) struct Guard {
    guarding: Option<Box<dyn Guards>>,
    pub(in crate::engine) under: Under,
    found: Found,
    over_transaction: bool,
    may_have_acted: bool,
    committing: bool,
}

impl Guard {
    pub(super) fn new<S: Store>(guarding: Guarding<S>, under: Under, found: Found) -> Self {
        Self {
            over_transaction: guarding.rules.transaction,
            guarding: Some(Box::new(guarding)),
            under,
            found,
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

    /// The call in doubt was found not to have acted.
    pub(in crate::engine) fn verified(&mut self) {
        self.found = Found::Free;
    }

    /// The handler starts now.
    pub(in crate::engine) fn started(&mut self) {
        self.may_have_acted = !self.over_transaction;
    }

    /// The transaction is being ended. Until there is an answer, its outcome is unknown.
    pub(in crate::engine) fn committing(&mut self) {
        self.committing = true;
    }

    pub(in crate::engine) async fn end(mut self, end: GuardEnd) {
        if let Some(guarding) = self.guarding.take() {
            guarding.end(end).await;
        }
    }

    /// Gives the previous id the same record that was found under the new one.
    pub(in crate::engine) async fn settle(self, record: &Record, identity: &Identity) {
        let end = match &record.state {
            RecordState::Completed { response, at } if identity.is_of(record.fingerprint) => {
                GuardEnd::Copy {
                    response: response.clone(),
                    at: *at,
                }
            }
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
        if let Some(guarding) = self.guarding.take()
            && let Ok(runtime) = Handle::try_current()
        {
            drop(runtime.spawn(guarding.end(end)));
        }
    }
}

/// A [`Guarding`] for any type of store.
trait Guards: Send + Sync {
    fn end(self: Box<Self>, end: GuardEnd) -> BoxFuture<'static, ()>;
}

/// The leases of a guard.
pub(super) struct Guarding<S: Store> {
    pub(super) held: Arc<Held<S>>,
    pub(super) mark: Option<Arc<Held<S>>>,
    pub(super) rules: GuardRules,
}

impl<S: Store> Guards for Guarding<S> {
    fn end(self: Box<Self>, end: GuardEnd) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let ended = self.end_lease(end).await;
            self.held.watch.end();
            if let Some(mark) = &self.mark {
                mark.watch.end();
            }
            if let Err(error) = ended {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the record under the previous secret could not be written; processes with only that secret will answer that the outcome is unknown"
                );
            }
        })
    }
}

impl<S: Store> Guarding<S> {
    async fn end_lease(&self, end: GuardEnd) -> Result<(), StoreError> {
        let lease = &self.held.watch.lease;
        let store = &self.held.store;
        match end {
            GuardEnd::Complete(completion) => self.complete(lease, completion).await,
            GuardEnd::Copy { response, at } => {
                // A renewal returns the store's time.
                let renewed = store.renew(lease, self.rules.terms.lease).await?;
                let LeaseEnd::Done(now) = renewed else {
                    return self.release_mark().await;
                };
                let age = now.as_micros().saturating_sub(at.as_micros());
                let age = Duration::from_micros(u64::try_from(age).unwrap_or(0));
                let mut completion =
                    Completion::new(response, self.rules.retention.saturating_sub(age));
                completion.tombstone = self.rules.tombstone;
                self.complete(lease, completion).await
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
            // The mark goes first: without a mark the guard is in doubt, whatever happens next.
            GuardEnd::Abandon => {
                self.release_mark().await?;
                store.abandon(lease).await.map(drop)
            }
            GuardEnd::AbandonMarked => store.abandon(lease).await.map(drop),
        }
    }

    /// Tries once while the caller waits. If the store fails, keeps trying in the background while
    /// the lease lasts.
    async fn complete(&self, lease: &Lease, completion: Completion) -> Result<(), StoreError> {
        match self.held.store.complete(lease, completion.clone()).await {
            Ok(_) => self.release_mark().await,
            Err(error) if error.is_transient() => {
                let late = Self {
                    held: Arc::clone(&self.held),
                    mark: self.mark.clone(),
                    rules: self.rules,
                };
                let (lease, left) = (lease.clone(), self.held.watch.left());
                drop(tokio::spawn(async move {
                    let bound = tokio::time::Instant::now() + left;
                    while tokio::time::Instant::now() < bound {
                        sleep(PAUSE).await;
                        let completed = late.held.store.complete(&lease, completion.clone()).await;
                        if completed.is_ok() {
                            drop(late.release_mark().await);
                            return;
                        }
                    }
                }));
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    async fn release_mark(&self) -> Result<(), StoreError> {
        let Some(mark) = &self.mark else {
            return Ok(());
        };
        let lease = &mark.watch.lease;
        mark.store.release(lease, Duration::ZERO).await.map(drop)
    }
}
