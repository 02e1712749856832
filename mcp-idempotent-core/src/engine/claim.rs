//! How every call begins, in both modes: authorize, join or lead, claim, poll.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::Instrument as _;

use super::{
    Engine,
    claimed_call::{ClaimedCall, is_running},
    flight::{Entrant, Entry, Leader, Wake},
    guard::{Clearance, Uncleared, Under},
    handler,
    plan::{Failed, Failure, ModeRules, failed_with},
    quota::NotAllowed,
    request::Request,
    secret::Unchecked,
};
use crate::{
    answer::{Answer, Replay, answer_from},
    error::Refusal,
    fingerprint::Identity,
    policy::{Policy, Wait},
    record::{Record, RecordState},
    refusal,
    store::{Claim, Claimed, Store, StoreErrorKind},
    telemetry::{ObservedCall, Outcome},
};

/// The first pause between two claims of a key that another process holds. It doubles up to
/// [`LONGEST_PAUSE`]. The pauses are short enough to follow a fast call, and long enough not to
/// slow down other keys.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// How often a claim is repeated after the database has refused to serialise it.
const CLAIM_REPEATS: u32 = 3;

/// How a call continues.
pub(super) enum Beginning<C> {
    Answer(Answer),
    /// The store is unavailable, and the policy lets the handler run all the same.
    FailOpen,
    /// The claim is held.
    Claimed(C, Box<ClaimedCall>),
}

impl<C> From<Refusal> for Beginning<C> {
    fn from(refusal: Refusal) -> Self {
        Self::Answer(refusal.into())
    }
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
            // While a leader claims, all callers wait for what it finds. A caller that does not
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

impl<S: Store> Engine<S> {
    /// Leads or joins. A leader claims with `claim_with`.
    pub(super) async fn begin_call<C, F>(
        &self,
        request: &Request<'_>,
        rules: ModeRules,
        claim_with: impl Fn(Claim, Option<Under>) -> F,
    ) -> Beginning<C>
    where
        F: Future<Output = Result<Claimed<C>, Failed>>,
    {
        let observed = request.observe(&self.inner.application, rules.mode);
        let span = observed.span();
        let begun = self
            .join_or_claim(request, &observed, rules, claim_with)
            .instrument(span)
            .await;
        match begun {
            Beginning::Answer(answer) => {
                observed.answered(&answer);
                Beginning::Answer(answer)
            }
            Beginning::FailOpen => {
                observed.end(Outcome::FailedOpen);
                Beginning::FailOpen
            }
            Beginning::Claimed(held, mut call) => {
                call.observed = observed;
                Beginning::Claimed(held, call)
            }
        }
    }

    async fn join_or_claim<C, F>(
        &self,
        request: &Request<'_>,
        observed: &ObservedCall,
        rules: ModeRules,
        claim_with: impl Fn(Claim, Option<Under>) -> F,
    ) -> Beginning<C>
    where
        F: Future<Output = Result<Claimed<C>, Failed>>,
    {
        let identity = &request.identity;
        if let Err(refusal) = request.check().await {
            return refusal.into();
        }
        // Only a call that leads may run without protection: another one would run beside its leader.
        let fails_open = match self.inner.check_secret().await {
            Ok(()) => false,
            Err(Unchecked::Store(error)) if rules.fail_open && error.is_transient() => true,
            Err(unchecked) => return unchecked.into_refusal().into(),
        };
        if let Some(replacement) = &self.inner.replacement
            && let Err(refusal) = replacement.keeps(&request.call.tool, request.policy, identity)
        {
            return refusal.into();
        }
        if handler::is_held_by_this_task(identity.id) {
            return refusal::called_from_itself().into();
        }
        let patience = Patience::of(request.policy.wait);
        let mut entry = self.inner.flights.enter(Entrant {
            id: identity.id,
            fingerprint: identity.fingerprint,
            round: request.round,
            patient: patience.patient,
        });
        let leader = loop {
            match entry {
                Entry::Lead(leader) => break leader,
                Entry::Conflict => return refusal::conflict().into(),
                Entry::InProgress => return refusal::in_progress().into(),
                Entry::Full => return refusal::too_many_waiting().into(),
                Entry::Wait(mut waiting) => {
                    let waited = observed.waiting();
                    let woken = timeout_at(patience.deadline, &mut waiting.wake).await;
                    drop((waiting, waited));
                    let Ok(Ok(woken)) = woken else {
                        return refusal::in_progress().into();
                    };
                    // Ask again, because the permission may have been withdrawn while the caller
                    // waited.
                    let checked = request.check().await;
                    match woken {
                        Wake::Lead(leader) => {
                            if let Err(refusal) = checked {
                                leader.step_down();
                                return refusal.into();
                            }
                            entry = Entry::Lead(leader);
                        }
                        woken => {
                            let answer = checked
                                .map_or_else(Answer::from, |()| joined(woken, identity, rules));
                            return Beginning::Answer(answer);
                        }
                    }
                }
            }
        };
        if fails_open {
            leader.step_down();
            return Beginning::FailOpen;
        }
        // Boxed, because there may be thousands of waiting calls, and they do not need the leader's
        // state.
        Box::pin(self.claim(leader, request, observed, patience, rules, claim_with)).await
    }

    async fn claim<C, F>(
        &self,
        mut leader: Leader,
        request: &Request<'_>,
        observed: &ObservedCall,
        patience: Patience,
        rules: ModeRules,
        claim_with: impl Fn(Claim, Option<Under>) -> F,
    ) -> Beginning<C>
    where
        F: Future<Output = Result<Claimed<C>, Failed>>,
    {
        let identity = &request.identity;
        let claim = request.claim(&self.inner.application);
        let mut pause = FIRST_PAUSE;
        let mut waiting = None;
        let mut repeats = 0;
        let mut clearance = Clearance::default();
        let mut allowance = match self.allow(request).await {
            Ok(allowed) => allowed,
            Err(NotAllowed::Refused(refusal)) => {
                leader.step_down();
                return refusal.into();
            }
            Err(NotAllowed::Store(error)) => match failed_with(&error, None, false, rules) {
                Failure::FailOpen => {
                    leader.step_down();
                    return Beginning::FailOpen;
                }
                _ => {
                    leader.fail();
                    return refusal::store_unavailable(error).into();
                }
            },
        };
        loop {
            let cleared = self.clear(&mut clearance, request, observed, rules, &claim);
            let claimed = match cleared.await.map(Claimed::held) {
                Ok(Ok(under)) => claim_with(claim.clone(), under).await,
                Ok(Err(found)) => Ok(found),
                Err(Uncleared::Failed(failed)) => Err(failed),
                Err(Uncleared::Refused(refusal)) => {
                    leader.step_down();
                    return refusal.into();
                }
            };
            // Ask again, because the permission may have been withdrawn while another process held
            // the key.
            if waiting.is_some()
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
                    if let Some(allowance) = allowance.take() {
                        allowance.spend();
                    }
                    clearance.claimed();
                    let policy = Arc::clone(request.policy);
                    let call = ClaimedCall::new(identity.clone(), claim, policy, clearance, leader);
                    return Beginning::Claimed(held, Box::new(call));
                }
                Ok(Claimed::Conflict) => {
                    // One of the waiting calls may be the one that holds the key. Each asks the
                    // store itself.
                    leader.step_down();
                    return refusal::conflict().into();
                }
                Ok(Claimed::Found(record)) if is_running(&record, identity) => {
                    leader.found_running();
                }
                Ok(Claimed::Found(record)) => {
                    warn_of_doubt(&record, request);
                    // One of the waiting calls may be the one that the record is about, and that runs
                    // or is in doubt. Each asks the store itself.
                    if identity.is_of(record.fingerprint) || is_final(&record) {
                        leader.share(&record);
                    } else {
                        leader.step_down();
                    }
                    let rotated = clearance.rotated().is_some();
                    clearance.settle(&record, identity).await;
                    let mut answer = answer_from(record, identity, rules.on_doubt, false);
                    if let Answer::Replayed(replay) = &mut answer {
                        replay.rotated = rotated;
                    }
                    return Beginning::Answer(answer);
                }
                Ok(Claimed::InProgress) => leader.found_busy(),
                Err(Failed { error, .. })
                    if error.kind() == StoreErrorKind::Conflict && repeats < CLAIM_REPEATS =>
                {
                    repeats += 1;
                    continue;
                }
                Err(Failed { error, in_doubt }) => {
                    let in_doubt = in_doubt.or_else(|| clearance.in_doubt());
                    let answer = match failed_with(&error, in_doubt, waiting.is_some(), rules) {
                        Failure::InDoubt(record) => {
                            leader.share(&record);
                            answer_from(record, identity, rules.on_doubt, false)
                        }
                        Failure::InProgress => {
                            leader.fail();
                            refusal::in_progress().into()
                        }
                        Failure::FailOpen => {
                            leader.step_down();
                            return Beginning::FailOpen;
                        }
                        Failure::Unavailable => {
                            leader.fail();
                            refusal::store_unavailable(error).into()
                        }
                    };
                    return Beginning::Answer(answer);
                }
            }
            let now = Instant::now();
            if !patience.patient || now >= patience.deadline {
                leader.step_down();
                return refusal::in_progress().into();
            }
            waiting.get_or_insert_with(|| observed.waiting());
            sleep_until(patience.deadline.min(now + pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// The answer to a waiting call, from what its leader found or did.
fn joined(wake: Wake, identity: &Identity, rules: ModeRules) -> Answer {
    let refusal = match wake {
        Wake::Record(record) => {
            return answer_from(record, identity, rules.on_doubt, true);
        }
        Wake::InputRequired(response) => {
            return Answer::Replayed(Replay::new(response, None, true));
        }
        Wake::Conflict => refusal::conflict(),
        Wake::InProgress => refusal::in_progress(),
        Wake::GaveUp | Wake::Lead(_) => refusal::gave_up(),
    };
    refusal.into()
}

/// Logs the record id. After a crash this is the only line from which an operator can find the
/// record.
fn warn_of_doubt(record: &Record, request: &Request<'_>) {
    let identity = &request.identity;
    if let RecordState::InDoubt {
        attempts, since, ..
    } = record.state
        && identity.is_of(record.fingerprint)
    {
        tracing::warn!(
            tool = &*request.call.tool,
            key_prefix = identity.key_prefix.as_deref(),
            record = %identity.id,
            attempts,
            %since,
            "a call was refused because an earlier attempt at it is in doubt"
        );
    }
}

/// Whether every call of the key is answered from this record.
fn is_final(record: &Record) -> bool {
    matches!(
        record.state,
        RecordState::Completed { .. } | RecordState::Expired
    )
}

/// Whether a caller that waited for another process now has the claim or an answer.
fn ends_the_wait<C>(claimed: &Result<Claimed<C>, Failed>) -> bool {
    match claimed {
        Ok(Claimed::New(_) | Claimed::Conflict) => true,
        Ok(Claimed::Found(record)) => !matches!(record.state, RecordState::InProgress { .. }),
        Ok(Claimed::InProgress) | Err(_) => false,
    }
}
