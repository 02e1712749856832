//! The leases of a guard: its own, and that of its witness.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{
    ending::{EndGuard, GuardEnd},
    of_call::{Found, Guard, Under},
    terms::{GuardOf, GuardTerms},
    witness::{abandon_witnessed, claim_witness, witness_of},
};
use crate::{
    engine::{
        Inner,
        lease::{Heart, Held, SeedOf},
    },
    store::{Claim, Completion, Lease, LeaseEnd, Store, StoreError},
};

/// What a guard holds.
struct GuardLeases<S: Store> {
    held: Arc<Held<Arc<S>>>,
    witness: Option<Arc<Held<Arc<S>>>>,
    terms: GuardTerms,
}

impl<S: Store> EndGuard for GuardLeases<S> {
    fn end(self: Box<Self>, end: GuardEnd) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // A renewal that meets the ended lease is no loss.
            self.held.returned();
            let ended = self.end_lease(end).await;
            self.held.end();
            if let Some(witness) = &self.witness {
                witness.end();
            }
            if let Err(error) = ended {
                let error = &error as &dyn std::error::Error;
                match self.terms.of {
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
            GuardEnd::Completed => self.release_witness().await,
            GuardEnd::Copy { response, at } => {
                // A renewal returns the store's time.
                if let LeaseEnd::Done(now) = store.renew(lease, self.terms.timing.lease).await? {
                    let age = now.as_micros().saturating_sub(at.as_micros());
                    let age = Duration::from_micros(u64::try_from(age).unwrap_or(0));
                    let left = self.terms.retention.saturating_sub(age);
                    let mut completion = Completion::new(response, left);
                    completion.tombstone = self.terms.tombstone;
                    // If it is fenced, its present holder finds the record too.
                    store.complete(lease, completion).await?;
                }
                self.release_witness().await
            }
            GuardEnd::Release { acted } => {
                let keep = if acted || lease.attempts > 1 {
                    self.terms.retention
                } else {
                    Duration::ZERO
                };
                store.release(lease, keep).await?;
                self.release_witness().await
            }
            // The handler ended its transaction itself and may have committed. A guard of a
            // transaction leaves no doubt, so a result that is not kept holds equal calls back.
            GuardEnd::Abandon if self.terms.transaction && self.terms.of == GuardOf::EqualCalls => {
                let unknown = Completion::new(None, self.terms.retention);
                store.complete(lease, unknown).await.map(drop)
            }
            // The witness goes first: without a witness the guard is in doubt, whatever happens next.
            GuardEnd::Abandon => {
                self.release_witness().await?;
                store.abandon(lease).await.map(drop)
            }
            GuardEnd::AbandonWitnessed => match store.abandon(lease).await? {
                LeaseEnd::Done(_) => Ok(()),
                // It has ended some other way, so the witness says nothing any more.
                LeaseEnd::Fenced => self.release_witness().await,
            },
        }
    }

    async fn release_witness(&self) -> Result<(), StoreError> {
        let Some(witness) = &self.witness else {
            return Ok(());
        };
        let lease = &witness.lease;
        witness.store.release(lease, Duration::ZERO).await.map(drop)
    }
}

impl<S: Store> Inner<S> {
    pub(super) async fn hold_guard(
        &self,
        lease: Lease,
        guarded: &Claim,
        terms: GuardTerms,
        asked: Instant,
        found: Found,
    ) -> Result<Guard, StoreError> {
        let origin = lease.origin;
        let witness = witness_of(guarded, lease.token);
        let held = self.keep_guard(lease, guarded, terms, asked);
        let under = Under {
            guard: Arc::<Held<Arc<S>>>::clone(&held),
            id: guarded.id,
            fingerprint: guarded.fingerprint,
            origin,
            in_doubt: found == Found::InDoubt,
        };
        let leases = |witness| {
            Box::new(GuardLeases {
                held: Arc::clone(&held),
                witness,
                terms,
            })
        };
        if !terms.has_witness() {
            return Ok(Guard::new(leases(None), terms, under, found));
        }
        let asked = Instant::now();
        match claim_witness(&*self.store, &witness).await {
            Ok(lease) => {
                let witness = lease.map(|lease| self.keep_guard(lease, &witness, terms, asked));
                Ok(Guard::new(leases(witness), terms, under, found))
            }
            Err(error) => {
                if found == Found::Witnessed {
                    drop(tokio::spawn(abandon_witnessed(held, witness)));
                } else {
                    drop(Guard::new(leases(None), terms, under, found));
                }
                Err(error)
            }
        }
    }

    fn keep_guard(
        &self,
        lease: Lease,
        claim: &Claim,
        terms: GuardTerms,
        asked: Instant,
    ) -> Arc<Held<Arc<S>>> {
        // Nobody asks a guard for a downstream key.
        let seed_of = SeedOf {
            id: claim.id,
            fingerprint: claim.fingerprint,
            origin: lease.origin,
            secret: None,
        };
        let held = Arc::new(Held::new(
            (Arc::clone(&self.store), Arc::<Heart>::clone(&self.heart)),
            lease,
            terms.timing,
            asked,
            seed_of,
            claim,
            None,
        ));
        let kept: Arc<Held> = Arc::<Held<Arc<S>>>::clone(&held);
        self.heart.keep(&kept);
        held
    }
}
