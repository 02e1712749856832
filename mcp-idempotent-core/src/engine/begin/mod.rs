//! How a call begins: authorize, join or lead, claim, poll.

mod lease;
mod transaction;

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep_until, timeout_at};

use super::{
    Answer, Engine, Request,
    answer::{self, Decision},
    attempt::{self, Context},
    flight::{Entry, Leader, Ticket, Wake},
    rotation::{self, Guard, GuardRules, Under},
    secret::Unchecked,
};
use crate::{
    error::Refusal,
    fingerprint::Identity,
    policy::{OnDoubt, Policy, Wait},
    record::{Record, RecordState},
    store::{CallInfo, Claim, Claimed, Store, StoreError, StoreErrorKind},
    telemetry::ObservedCall,
};

/// The first pause between two claims of a key that another process holds. It doubles up to
/// [`LONGEST_PAUSE`]: short enough to follow a fast call, long enough to cost other keys nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// How often a claim is repeated that the database refused to serialise.
const CLAIM_REPEATS: u32 = 3;

/// What a call's mode and policy make of what is in its way.
#[derive(Clone, Copy)]
struct Rules {
    fail_open: bool,
    on_doubt: OnDoubt,
    transaction: bool,
}

impl Rules {
    /// Transactions are neither run again nor verified, whatever the policy says of leases.
    const OF_TRANSACTIONS: Self = Self {
        fail_open: false,
        on_doubt: OnDoubt::Fail,
        transaction: true,
    };
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
        claim_with: impl Fn(Option<Claim>, Option<Under>) -> F,
    ) -> Led<C>
    where
        F: Future<Output = Result<Claimed<C>, StoreError>>,
    {
        if let Err(refusal) = request.check().await {
            return refusal.into();
        }
        let Some(identity) = &request.identity else {
            return match claim_with(None, None).await {
                Ok(Claimed::New(held)) => Led::Claimed {
                    held,
                    context: Context::unprotected(request),
                },
                Ok(_) => unreachable_answer().into(),
                Err(error) => answer::store_unavailable(error).into(),
            };
        };
        match self.inner.check_secret().await {
            Ok(()) => {}
            Err(Unchecked::Store(error)) if rules.fail_open && error.is_transient() => {
                return Led::Unprotected;
            }
            Err(unchecked) => return unchecked.into_refusal().into(),
        }
        if let Some(rotation) = &self.inner.rotation {
            let kept = rotation::kept(request.policy, identity);
            if kept > rotation.period {
                let tool = &request.call.tool;
                return answer::rotation_too_short(tool, kept, rotation.period).into();
            }
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
        claim_with: impl Fn(Option<Claim>, Option<Under>) -> F,
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
        let mut guard = None;
        loop {
            let guarded = self.guard(&mut guard, request, identity, rules, &claim);
            let claimed = match guarded.await {
                Ok(Claimed::New(under)) => claim_with(Some(claim.clone()), under).await,
                Ok(Claimed::InProgress) => Ok(Claimed::InProgress),
                Ok(Claimed::Conflict) => Ok(Claimed::Conflict),
                Ok(Claimed::Found(record)) => Ok(Claimed::Found(record)),
                Err(error) => Err(error),
            };
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
                    if let Some(guard) = &mut guard {
                        guard.claimed();
                    }
                    return Led::Claimed {
                        held,
                        context: Context::protected(request, identity, claim, leader, guard),
                    };
                }
                Ok(Claimed::Conflict) => {
                    // Whoever waits here may be the rightful one: each asks for itself.
                    leader.step_down();
                    return answer::conflict().into();
                }
                Ok(Claimed::Found(record)) => {
                    warn_of_doubt(&record, identity, &request.call);
                    match answer::decide(record.clone(), identity, rules.on_doubt, false) {
                        Decision::Answer(answer) => {
                            leader.share(&record);
                            if let Some(guard) = guard {
                                guard.settle(&record, identity).await;
                            }
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
                // The call was seen to run elsewhere: nothing may be said of its effect, and nothing
                // may run beside it.
                Err(error) if waited && error.is_transient() => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "idempotency store failed while a call waited for one that runs elsewhere"
                    );
                    leader.fail();
                    return answer::in_progress().into();
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

impl<S: Store> Engine<S> {
    /// While a secret is replaced: what a call is under before it claims its record.
    async fn guard(
        &self,
        guard: &mut Option<Guard>,
        request: &Request<'_>,
        identity: &Identity,
        rules: Rules,
        claim: &Claim,
    ) -> Result<Claimed<Option<Under>>, StoreError> {
        let Some(previous) = identity.previous.as_deref() else {
            return Ok(Claimed::New(None));
        };
        if let Some(guard) = guard {
            return Ok(Claimed::New(Some(guard.under)));
        }
        let rules = GuardRules::new(
            request.policy,
            identity,
            rules.on_doubt,
            rules.transaction,
            self.inner.store.transaction_limit(),
        );
        Ok(match self.inner.guard(claim, *previous, rules).await? {
            Claimed::New(claimed) => {
                let under = guard.insert(claimed).under;
                Claimed::New(Some(under))
            }
            Claimed::InProgress => Claimed::InProgress,
            Claimed::Conflict => Claimed::Conflict,
            Claimed::Found(record) => Claimed::Found(record),
        })
    }
}

/// Somebody has to look, and cannot find the record without its id: a crash leaves no other line.
fn warn_of_doubt(record: &Record, identity: &Identity, call: &CallInfo) {
    if let RecordState::InDoubt {
        attempts, since, ..
    } = record.state
        && identity.is_of(record.fingerprint)
    {
        tracing::warn!(
            tool = &*call.tool,
            key_prefix = identity.key_prefix.as_deref(),
            record = %identity.id,
            attempts,
            %since,
            "a call was refused because an earlier attempt at it is in doubt"
        );
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
