//! Begins a call in lease mode: claims it, or takes over a call in doubt.

use std::{future::ready, sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::Instrument as _;

use super::{
    attempt::LeaseAttempt,
    end_on_drop::{EndOnDrop, Stage},
    heart::Heart,
    held::{Held, SeedOf, Terms},
    verify::{self, Verified},
};
use crate::{
    answer::Answer,
    engine::{
        Engine, Inner, Request,
        claim::Beginning,
        guard::Under,
        handler::DetachOnDrop,
        plan::{self, Failed, ModeRules},
    },
    policy::OnDoubt,
    store::{Claim, Claimed, Lease, Store},
    telemetry::Mode,
};

/// How a call in lease mode begins.
#[expect(
    clippy::exhaustive_enums,
    reason = "a caller must handle every beginning"
)]
pub enum Begun<S: Store> {
    /// There is already an answer. The handler does not run.
    Answer(Answer),
    /// Run the handler under this attempt.
    Attempt(LeaseAttempt<S>),
    /// The store is unavailable, and the policy lets the handler run without any protection.
    FailOpen,
}

impl<S: Store> Engine<S> {
    /// Begins a call in lease mode. The claim is durable before the handler runs.
    ///
    /// If the future is dropped, a claim that was on its way is released. A call that was in doubt
    /// stays in doubt: if the future is dropped after a takeover, for instance during `verify`, then
    /// under a new token.
    pub async fn begin_lease(&self, request: Request<'_>) -> Begun<S> {
        // A lease must outlive any transaction that blocks its renewal.
        if let Err(refusal) = request.check_policy(self.inner.store.transaction_limit()) {
            let observed = request.observe(&self.inner.application, Mode::Lease);
            observed.refused(&refusal);
            return Begun::Answer(refusal.into());
        }
        let policy = request.policy;
        let on_doubt = match policy.on_doubt {
            OnDoubt::Verify if request.verify.is_none() => OnDoubt::Fail,
            on_doubt => on_doubt,
        };
        let rules = ModeRules {
            mode: Mode::Lease,
            fail_open: policy.run_unprotected_when_store_is_unavailable,
            on_doubt,
        };
        let claiming = Claiming {
            on_doubt,
            keep_origin: plan::retention(policy, request.identity.kind),
            terms: Terms {
                lease: policy.lease,
                heartbeat: policy.heartbeat_period(),
            },
        };
        let begun = self
            .begin_call(&request, rules, |claim, under| {
                let inner = Arc::clone(&self.inner);
                // The claim may be committed after this caller is gone, and must then be released.
                DetachOnDrop::new(async move { inner.claim_lease(claim, under, claiming).await })
            })
            .await;
        let (owned, mut call) = match begun {
            Beginning::Answer(answer) => return Begun::Answer(answer),
            Beginning::FailOpen => return Begun::FailOpen,
            Beginning::Claimed(owned, call) => (owned, call),
        };
        match (on_doubt, request.verify) {
            (OnDoubt::Verify, Some(verify)) if owned.in_doubt => {
                let mut observed = call.take_observed();
                let span = observed.span();
                // Boxed, because only few calls get here.
                let verified = Box::pin(verify::verify(verify, owned, call, &mut observed))
                    .instrument(span)
                    .await;
                match verified {
                    Verified::Run(owned, mut call) => {
                        call.observed = observed;
                        Begun::Attempt(LeaseAttempt::new(owned, call))
                    }
                    Verified::Answer(answer) => {
                        observed.answered(&answer);
                        Begun::Answer(answer)
                    }
                }
            }
            _ => Begun::Attempt(LeaseAttempt::new(owned, call)),
        }
    }
}

impl<S: Store> std::fmt::Debug for Begun<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Answer(answer) => f.debug_tuple("Answer").field(answer).finish(),
            Self::Attempt(attempt) => f.debug_tuple("Attempt").field(attempt).finish(),
            Self::FailOpen => f.write_str("FailOpen"),
        }
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
    ) -> Result<Claimed<EndOnDrop<S>>, Failed> {
        let claimed = self
            .claim_or_take_over(&claim, |record, _| {
                ready(Ok(match claiming.on_doubt {
                    OnDoubt::Fail => Claimed::Found(record),
                    _ => Claimed::New(()),
                }))
            })
            .await?;
        Ok(claimed.map(|taken| {
            let was_in_doubt = taken.over.is_some();
            if was_in_doubt {
                tracing::warn!(
                    tool = &*claim.call.tool,
                    key_prefix = claim.key_prefix.as_deref(),
                    record = %claim.id,
                    attempts = taken.lease.attempts,
                    on_doubt = ?claiming.on_doubt,
                    "a call in doubt was taken over"
                );
            }
            self.hold(
                taken.lease,
                &claim,
                under,
                claiming,
                taken.asked,
                was_in_doubt,
            )
        }))
    }

    fn hold(
        &self,
        lease: Lease,
        claim: &Claim,
        under: Option<Under>,
        claiming: Claiming,
        asked: Instant,
        in_doubt: bool,
    ) -> EndOnDrop<S> {
        // The downstream keys are the same for every process that may make an attempt at this call.
        let seed_of = match (&under, &self.replacement) {
            (Some(under), Some(replacement)) => SeedOf {
                id: under.id,
                fingerprint: under.fingerprint,
                origin: under.origin,
                secret: replacement.secret.clone(),
            },
            _ => SeedOf {
                id: claim.id,
                fingerprint: claim.fingerprint,
                origin: lease.origin,
                secret: self.secret.clone(),
            },
        };
        let in_doubt = in_doubt || under.as_ref().is_some_and(|under| under.in_doubt);
        let held = Arc::new(Held::new(
            (Arc::clone(&self.store), Arc::<Heart>::clone(&self.heart)),
            lease,
            claiming.terms,
            asked,
            seed_of,
            claim,
            under.map(|under| under.guard),
        ));
        let kept: Arc<Held> = Arc::<Held<Arc<S>>>::clone(&held);
        self.heart.keep(&kept);
        EndOnDrop {
            held,
            in_doubt,
            keep_origin: claiming.keep_origin,
            on_doubt: claiming.on_doubt,
            stage: Stage::Claimed,
        }
    }
}
