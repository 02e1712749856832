//! How a call begins: authorize, join or lead, claim, poll.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::Instrument as _;

use super::{
    Answer, Begun, Engine, Inner, LeaseAttempt, Request, TransactionAttempt,
    answer::{self, Decision},
    attempt::{self, Context, HeldLease},
    detach::DetachOnDrop,
    flight::{Entry, Leader, Ticket, Wake},
    lease::{Kept, Seed, Terms},
    plan,
    secret::Unchecked,
    verify::{self, Verified},
};
use crate::{
    error::Refusal,
    fingerprint::Identity,
    policy::{OnDoubt, Policy, Wait},
    record::RecordState,
    store::{CallInfo, Claim, Claimed, Lease, Store, StoreError, StoreErrorKind, TransactionStore},
    telemetry::{Mode, ObservedCall, Outcome},
};

/// The first pause between two claims of a key that another process holds. It doubles up to
/// [`LONGEST_PAUSE`]: short enough to follow a fast call, long enough to cost other keys nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// How often a claim is repeated that the database refused to serialise.
const CLAIM_REPEATS: u32 = 3;

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
            && request.policy.lease <= limit * 3
        {
            let refusal = answer::lease_too_short(request.policy.lease, limit);
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
            .lead_or_answer(&request, rules, |claim| {
                let inner = Arc::clone(&self.inner);
                // The claim may be committed when this caller is gone: somebody has to release it.
                DetachOnDrop::new(async move {
                    match claim {
                        Some(claim) => inner.claim_lease(claim, claiming).await,
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
    /// ask for their [`LeaseHandle`](super::LeaseHandle) all the same. Its downstream keys are new
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

/// What a call's mode and policy make of what is in its way.
#[derive(Clone, Copy)]
struct Rules {
    fail_open: bool,
    on_doubt: OnDoubt,
}

impl Rules {
    /// Transactions are neither run again nor verified, whatever the policy says of leases.
    const OF_TRANSACTIONS: Self = Self {
        fail_open: false,
        on_doubt: OnDoubt::Fail,
    };
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
        claiming: Claiming,
    ) -> Result<Claimed<Option<HeldLease<S>>>, StoreError> {
        let mut tries = 0;
        loop {
            let asked = Instant::now();
            let record = match self.store.claim(&claim).await? {
                Claimed::New(lease) => {
                    let held = self.hold(lease, &claim, claiming, asked, false);
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
                    let held = self.hold(lease, &claim, claiming, asked, true);
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
        claiming: Claiming,
        asked: Instant,
        in_doubt: bool,
    ) -> HeldLease<S> {
        let seed = Seed::new(
            claim.id,
            claim.fingerprint,
            lease.origin,
            self.secret.clone(),
        );
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

impl<S: TransactionStore> Engine<S> {
    /// Begins a call in transaction mode: the attempt holds the open transaction.
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn begin_transaction(&self, request: Request<'_>) -> Begun<TransactionAttempt<S>> {
        let observed = request.observe(&self.inner.application, Mode::Transaction);
        let request = Request {
            observed: Some(&observed),
            ..request
        };
        let claimed = self
            .lead_or_answer(&request, Rules::OF_TRANSACTIONS, |claim| {
                let call = request.call.clone();
                async move { self.inner.store.begin(&call, claim.as_ref()).await }
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
            Led::Claimed { held, context } => Begun::Attempt(TransactionAttempt::new(
                Arc::clone(&self.inner.store),
                held,
                context.observed_by(observed),
            )),
        }
    }
}

enum Led<C> {
    Answer(Answer),
    Unprotected,
    Claimed { held: C, context: Context },
}

/// How long a caller waits, and whether it waits for a handler at all.
#[derive(Clone, Copy)]
struct Patience {
    deadline: Instant,
    patient: bool,
}

impl Patience {
    fn of(wait: Wait) -> Self {
        let (patient, bound) = match wait {
            Wait::UpTo(bound) => (true, bound),
            // While a leader claims, everybody waits for what it finds: a caller that does not
            // want to wait for the handler still wants the record.
            Wait::Reject => (false, Wait::CLAIM_BOUND),
        };
        let now = Instant::now();
        Self {
            deadline: now
                .checked_add(bound)
                .unwrap_or(now + Policy::DEFAULT_RETENTION),
            patient,
        }
    }
}

impl<C> From<Refusal> for Led<C> {
    fn from(refusal: Refusal) -> Self {
        Self::Answer(Answer::Refused(refusal))
    }
}

impl<S: Store> Engine<S> {
    async fn lead_or_answer<C, F>(
        &self,
        request: &Request<'_>,
        rules: Rules,
        claim_with: impl Fn(Option<Claim>) -> F,
    ) -> Led<C>
    where
        F: Future<Output = Result<Claimed<C>, StoreError>>,
    {
        if let Err(refusal) = request.check().await {
            return refusal.into();
        }
        let Some(identity) = &request.identity else {
            return match claim_with(None).await {
                Ok(Claimed::New(held)) => Led::Claimed {
                    held,
                    context: Context::unprotected(request),
                },
                Ok(_) => unreachable_answer().into(),
                Err(error) => answer::store_unavailable(error).into(),
            };
        };
        match self.inner.check_secret(&request.call).await {
            Ok(()) => {}
            Err(Unchecked::AnotherSecret) => return answer::another_secret().into(),
            Err(Unchecked::Store(error)) if rules.fail_open && error.is_transient() => {
                return Led::Unprotected;
            }
            Err(Unchecked::Store(error)) => return answer::store_unavailable(error).into(),
        }
        if attempt::is_held_by_this_task(identity.id) {
            return answer::called_from_itself().into();
        }
        let patience = Patience::of(request.policy.wait);
        let mut entry = self.inner.flights.enter(Ticket {
            id: identity.id,
            fingerprint: identity.fingerprint,
            round: request.round,
            patient: patience.patient,
        });
        let leader = loop {
            match entry {
                Entry::Lead(leader) => break leader,
                Entry::Conflict => return answer::conflict().into(),
                Entry::InProgress => return answer::in_progress().into(),
                Entry::Full => return answer::too_many_waiting().into(),
                Entry::Wait(mut waiting) => {
                    let waited = request.observed.and_then(ObservedCall::waiting);
                    let woken = timeout_at(patience.deadline, &mut waiting.wake).await;
                    drop((waiting, waited));
                    let Ok(Ok(woken)) = woken else {
                        return answer::in_progress().into();
                    };
                    if let Wake::Lead(leader) = woken {
                        // A right that was withdrawn while the caller waited counts.
                        if let Err(refusal) = request.check().await {
                            leader.step_down();
                            return refusal.into();
                        }
                        entry = Entry::Lead(leader);
                        continue;
                    }
                    return self.wake(woken, request, identity, rules).await;
                }
            }
        };
        self.claim_as_leader(leader, request, identity, patience, rules, claim_with)
            .await
    }

    /// A waiter is answered by what the leader found or made.
    async fn wake<C>(
        &self,
        wake: Wake,
        request: &Request<'_>,
        identity: &Identity,
        rules: Rules,
    ) -> Led<C> {
        // A right that was withdrawn while the caller waited counts.
        if let Err(refusal) = request.check().await {
            return refusal.into();
        }
        match wake {
            Wake::Record(record) => match answer::decide(record, identity, rules.on_doubt, true) {
                Decision::Answer(answer) => Led::Answer(answer),
                Decision::InProgress => answer::in_progress().into(),
            },
            Wake::InputRequired(response) => Led::Answer(Answer::Replayed(super::Replay {
                response,
                at: None,
                joined: true,
            })),
            Wake::Conflict => answer::conflict().into(),
            Wake::InProgress => answer::in_progress().into(),
            Wake::GaveUp | Wake::Lead(_) => answer::gave_up().into(),
        }
    }

    async fn claim_as_leader<C, F>(
        &self,
        mut leader: Leader,
        request: &Request<'_>,
        identity: &Identity,
        patience: Patience,
        rules: Rules,
        claim_with: impl Fn(Option<Claim>) -> F,
    ) -> Led<C>
    where
        F: Future<Output = Result<Claimed<C>, StoreError>>,
    {
        let mut claim = Claim::new(identity.id, identity.fingerprint, request.call.clone());
        claim.key_prefix.clone_from(&identity.key_prefix);
        claim.on_expired = request.policy.on_expired;
        claim.lease = request.policy.lease;
        claim.in_doubt_retention = request.policy.in_doubt_retention;
        let mut pause = FIRST_PAUSE;
        let mut waiting = None;
        let mut repeats = 0;
        let mut waited = false;
        loop {
            let claimed = claim_with(Some(claim.clone())).await;
            // A right that was withdrawn while another process held the key counts.
            if waited
                && ends_the_wait(&claimed)
                && let Err(refusal) = request.check().await
            {
                drop(claimed);
                leader.step_down();
                return refusal.into();
            }
            match claimed {
                Ok(Claimed::New(held)) => {
                    leader.running();
                    return Led::Claimed {
                        held,
                        context: Context::protected(request, identity, claim, leader),
                    };
                }
                Ok(Claimed::Conflict) => {
                    // Whoever waits here may be the rightful one: each asks for itself.
                    leader.step_down();
                    return answer::conflict().into();
                }
                Ok(Claimed::Found(record)) => {
                    match answer::decide(record.clone(), identity, rules.on_doubt, false) {
                        Decision::Answer(answer) => {
                            leader.share(&record);
                            return Led::Answer(answer);
                        }
                        Decision::InProgress => leader.found_running(),
                    }
                }
                Ok(Claimed::InProgress) => leader.found_running(),
                Err(error)
                    if error.kind() == StoreErrorKind::Conflict && repeats < CLAIM_REPEATS =>
                {
                    repeats += 1;
                    continue;
                }
                Err(error) => {
                    if rules.fail_open && error.is_transient() {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "idempotency store failed; the handler runs without any protection"
                        );
                        leader.step_down();
                        return Led::Unprotected;
                    }
                    leader.fail();
                    return answer::store_unavailable(error).into();
                }
            }
            let now = Instant::now();
            if !patience.patient || now >= patience.deadline {
                leader.step_down();
                return answer::in_progress().into();
            }
            if waiting.is_none() {
                waiting = request.observed.and_then(ObservedCall::waiting);
            }
            sleep_until(patience.deadline.min(now + pause)).await;
            waited = true;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Whether a caller that waited for another process has its turn or its answer.
fn ends_the_wait<C>(claimed: &Result<Claimed<C>, StoreError>) -> bool {
    match claimed {
        Ok(Claimed::New(_) | Claimed::Conflict) => true,
        Ok(Claimed::Found(record)) => !matches!(record.state, RecordState::InProgress { .. }),
        Ok(Claimed::InProgress) | Err(_) => false,
    }
}

impl Request<'_> {
    async fn check(&self) -> Result<(), Refusal> {
        match self.authorize {
            Some(authorize) => authorize.authorize(&self.call).await,
            None => Ok(()),
        }
    }
}

/// A store answered a call without a claim as if it had one.
fn unreachable_answer() -> Refusal {
    answer::store_unavailable(StoreError::new(
        StoreErrorKind::Other,
        "the store answered a call without a claim with a record",
    ))
}
