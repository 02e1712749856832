//! Beginning a call in lease mode: claim it, or take over what is in doubt.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::Instrument as _;

use super::{Led, Rules};
use crate::{
    engine::{
        Answer, Begun, Engine, Inner, LeaseAttempt, Request, answer,
        attempt::{Context, HeldLease},
        detach::DetachOnDrop,
        lease::{Kept, Seed, Terms},
        plan,
        rotation::Under,
        verify::{self, Verified},
    },
    policy::{OnDoubt, Policy},
    record::RecordState,
    store::{CallInfo, Claim, Claimed, Lease, Store, StoreError, StoreErrorKind},
    telemetry::{Mode, ObservedCall, Outcome},
};

/// How often a call in doubt is tried to be taken over that others take over too.
const TAKE_OVERS: u32 = 8;

impl<S: Store> Engine<S> {
    /// Begins a call in lease mode: the claim is durable before the handler runs.
    ///
    /// Dropping the future leaves nothing behind: a claim that was on its way is released.
    pub async fn begin(&self, request: Request<'_>) -> Begun<LeaseAttempt<S>> {
        let mut observed = request.observe(&self.inner.application, Mode::Lease);
        let request = Request {
            observed: Some(&observed),
            ..request
        };
        // A lease must outlive any transaction that keeps it from being renewed.
        if let Some(limit) = self.inner.store.transaction_limit()
            && request.policy.lease <= limit.saturating_mul(3)
        {
            let refusal = answer::lease_too_short(&request.call.tool, request.policy.lease, limit);
            observed.refused(&refusal);
            return Begun::Answer(Answer::Refused(refusal));
        }
        if let Err(error) = request.policy.check() {
            let refusal = answer::invalid_policy(error);
            observed.refused(&refusal);
            return Begun::Answer(Answer::Refused(refusal));
        }
        let rules = Rules {
            fail_open: request.policy.run_unprotected_when_store_is_unavailable,
            on_doubt: match request.policy.on_doubt {
                OnDoubt::Verify if request.verify.is_none() => OnDoubt::Fail,
                on_doubt => on_doubt,
            },
            transaction: false,
        };
        let claiming = Claiming {
            on_doubt: rules.on_doubt,
            keep_origin: request
                .identity
                .as_ref()
                .map_or(Duration::ZERO, |identity| {
                    plan::retention(request.policy, identity.kind)
                }),
            terms: Terms {
                lease: request.policy.lease,
                heartbeat: request.policy.heartbeat_period(),
            },
        };
        let claimed = self
            .lead_or_answer(&request, rules, |claim, under| {
                let inner = Arc::clone(&self.inner);
                // The claim may be committed when this caller is gone: somebody has to release it.
                DetachOnDrop::new(async move {
                    match claim {
                        Some(claim) => inner.claim_lease(claim, under, claiming).await,
                        None => Ok(Claimed::New(None)),
                    }
                })
            })
            .instrument(observed.span())
            .await;
        match claimed {
            Led::Answer(answer) => {
                observed.answered(&answer);
                Begun::Answer(answer)
            }
            Led::Unprotected => {
                observed.end(Outcome::FailedOpen);
                Begun::Unprotected
            }
            // Without an identity there is nothing to claim, and nothing to run under.
            Led::Claimed { held: None, .. } => {
                observed.end(Outcome::Bypassed);
                Begun::Unprotected
            }
            Led::Claimed {
                held: Some(held),
                context,
            } => match (rules.on_doubt, request.verify) {
                (OnDoubt::Verify, Some(verify)) if held.in_doubt => {
                    let mut noted = ObservedCall::unobserved();
                    let verified =
                        verify::verify(verify, held, context, request.policy, &mut noted)
                            .instrument(observed.span())
                            .await;
                    observed.as_noted_in(&noted);
                    match verified {
                        Verified::Run(held, context) => {
                            Begun::Attempt(LeaseAttempt::new(held, context.observed_by(observed)))
                        }
                        Verified::Answer(answer) => {
                            observed.answered(&answer);
                            Begun::Answer(answer)
                        }
                    }
                }
                _ => Begun::Attempt(LeaseAttempt::new(held, context.observed_by(observed))),
            },
        }
    }

    /// An attempt at a call that nothing protects, after [`Begun::Unprotected`]: for handlers that
    /// ask for their [`LeaseHandle`](crate::LeaseHandle) all the same. Its downstream keys are new
    /// each time.
    #[must_use]
    pub fn unprotected_attempt(&self, call: CallInfo, policy: &Arc<Policy>) -> LeaseAttempt<S> {
        let terms = Terms {
            lease: policy.lease,
            heartbeat: policy.heartbeat_period(),
        };
        let kept = Kept::new(
            Arc::clone(&self.inner.store),
            Arc::clone(&self.inner.heart),
            None,
            terms,
            Instant::now(),
            Seed::unique(),
            call.clone(),
        );
        let request = Request::unprotected(call, policy);
        LeaseAttempt::new(
            HeldLease::new(Arc::new(kept), false, Duration::ZERO, OnDoubt::Fail),
            Context::unprotected(&request),
        )
    }
}

/// How a lease is claimed.
#[derive(Clone, Copy)]
struct Claiming {
    on_doubt: OnDoubt,
    keep_origin: Duration,
    terms: Terms,
}

impl<S: Store> Inner<S> {
    async fn claim_lease(
        &self,
        claim: Claim,
        under: Option<Under>,
        claiming: Claiming,
    ) -> Result<Claimed<Option<HeldLease<S>>>, StoreError> {
        let mut tries = 0;
        loop {
            let asked = Instant::now();
            let record = match self.store.claim(&claim).await? {
                Claimed::New(lease) => {
                    let held = self.hold(lease, &claim, under, claiming, asked, false);
                    return Ok(Claimed::New(Some(held)));
                }
                Claimed::InProgress => return Ok(Claimed::InProgress),
                Claimed::Conflict => return Ok(Claimed::Conflict),
                Claimed::Found(record) => record,
            };
            let RecordState::InDoubt { token, .. } = record.state else {
                return Ok(Claimed::Found(record));
            };
            if claiming.on_doubt == OnDoubt::Fail || record.fingerprint != claim.fingerprint {
                return Ok(Claimed::Found(record));
            }
            let asked = Instant::now();
            tries += 1;
            match self.store.take_over(&claim, token).await {
                Ok(Some(lease)) => {
                    tracing::warn!(
                        tool = &*claim.call.tool,
                        key_prefix = claim.key_prefix.as_deref(),
                        record = %claim.id,
                        attempts = lease.attempts,
                        on_doubt = ?claiming.on_doubt,
                        "a call in doubt was taken over"
                    );
                    let held = self.hold(lease, &claim, under, claiming, asked, true);
                    return Ok(Claimed::New(Some(held)));
                }
                // Somebody was faster; whoever it was decides.
                Ok(None) if tries >= TAKE_OVERS => return Ok(Claimed::InProgress),
                Ok(None) => {}
                Err(error) if error.kind() == StoreErrorKind::Conflict && tries < TAKE_OVERS => {}
                // An earlier attempt may have acted. That is more than a store that is away: nothing
                // may be said of the effect, and nothing may run without protection.
                Err(error) if error.is_transient() => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "a call in doubt could not be taken over"
                    );
                    return Ok(Claimed::Found(record));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn hold(
        &self,
        lease: Lease,
        claim: &Claim,
        under: Option<Under>,
        claiming: Claiming,
        asked: Instant,
        in_doubt: bool,
    ) -> HeldLease<S> {
        // The downstream keys are the same for all who may make an attempt at this call.
        let seed = match (under, &self.rotation) {
            (Some(under), Some(rotation)) => Seed::new(
                under.id,
                under.fingerprint,
                under.origin,
                rotation.secret.clone(),
            ),
            _ => Seed::new(
                claim.id,
                claim.fingerprint,
                lease.origin,
                self.secret.clone(),
            ),
        };
        let in_doubt = in_doubt || under.is_some_and(|under| under.in_doubt);
        let kept = Arc::new(Kept::new(
            Arc::clone(&self.store),
            Arc::clone(&self.heart),
            Some(lease),
            claiming.terms,
            asked,
            seed,
            claim.call.clone(),
        ));
        self.heart.keep(&kept);
        HeldLease::new(kept, in_doubt, claiming.keep_origin, claiming.on_doubt)
    }
}
