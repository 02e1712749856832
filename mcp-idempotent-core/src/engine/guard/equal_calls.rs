//! Equal calls under different explicit keys, where a tool's policy minds them.
//!
//! Calls of one scope with the same tool and the same canonical arguments share a second record, whatever
//! their keys are. Its fingerprint is made of the key, so the store's own answer tells a retry from a
//! rotated key:
//!
//! 1. A call first looks at its own record. A retry is answered from it, and pays nothing else.
//! 2. A new call claims the shared id as a lease, the [guard](super). If it is held or
//!    completed under the same fingerprint, that is an attempt of the same key, and the call's own id
//!    decides. Under another fingerprint it is another key, and the policy decides.
//! 3. Under the guard the call continues as usual. Its record and the guard are completed in one step, or
//!    neither is, so of two racing keys at most one commits. The guard is kept for the policy's window.
//!
//! The guard of a transaction leaves no doubt: when its lease has ended, the transaction can no longer
//! commit, so the id is free. In lease mode a guard in doubt stays in doubt for the window, and equal
//! calls under other keys are told that the outcome is unknown.

use std::{future::ready, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    clear::Uncleared,
    clearance::Clearance,
    of_call::{Found, Guard, Under},
    terms::GuardTerms,
};
use crate::{
    answer::RotatedKey,
    engine::{
        Engine, Inner, Request,
        handler::DetachOnDrop,
        plan::{self, Failed, ModeRules},
        take_over::Taken,
    },
    fingerprint::EqualCalls,
    policy::{OnDoubt, OnExpired, RotatedKeys},
    record::{Record, RecordState, Timestamp},
    refusal,
    store::{CallInfo, Claim, Claimed, LeaseEnd, Store},
    telemetry::{Mode, ObservedCall},
};

impl<S: Store> Engine<S> {
    /// Lets a call whose tool minds rotated keys claim its record.
    pub(super) async fn clear_of_equal_calls(
        &self,
        clearance: &mut Clearance,
        request: &Request<'_>,
        observed: &ObservedCall,
        rules: ModeRules,
        claim: &Claim,
        equal: EqualCalls,
    ) -> Result<Claimed<Option<Under>>, Uncleared> {
        let found = match self.inner.store.look_up(claim).await? {
            None => Found::Free,
            Some(own) if may_run_again(&own, claim, rules.on_doubt) => Found::InDoubt,
            Some(own) => return Ok(Claimed::Found(own)),
        };
        let other = match self
            .claim_shared(request, rules, claim, equal, found)
            .await?
        {
            Claimed::New(guard) => return Ok(Claimed::New(Some(clearance.hold(guard)))),
            Claimed::InProgress => return Ok(Claimed::InProgress),
            Claimed::Conflict => None,
            Claimed::Found(shared) if shared.fingerprint == equal.fingerprint => {
                return Ok(match shared.state {
                    // It was completed a moment ago, or its own record was kept for a shorter time.
                    RecordState::Completed { .. } | RecordState::Expired => Claimed::New(None),
                    RecordState::InProgress { .. } | RecordState::InDoubt { .. } => {
                        Claimed::InProgress
                    }
                });
            }
            Claimed::Found(shared) => Some(shared.state),
        };
        self.meet(clearance, request, observed, claim, other).await
    }

    /// An equal call under another key is in this state; `None` if all that is known is that it runs.
    async fn meet(
        &self,
        clearance: &mut Clearance,
        request: &Request<'_>,
        observed: &ObservedCall,
        claim: &Claim,
        other: Option<RecordState>,
    ) -> Result<Claimed<Option<Under>>, Uncleared> {
        let policy = request.policy;
        let at = match &other {
            Some(RecordState::Completed { at, .. }) => Some(*at),
            _ => None,
        };
        let (cleared, does) = match (policy.rotated_keys, other) {
            (RotatedKeys::Allow | RotatedKeys::Report, _) => {
                *clearance = Clearance::Rotated(RotatedKey { at });
                (Ok(Claimed::New(None)), "run all the same")
            }
            (_, Some(RecordState::InDoubt { .. })) => {
                let refusal = refusal::in_doubt_under_another_key();
                (Err(refusal), "refused: the other one is in doubt")
            }
            // It is counted once it has its result.
            (RotatedKeys::Join, None | Some(RecordState::InProgress { .. })) => {
                return Ok(Claimed::InProgress);
            }
            (
                RotatedKeys::Join,
                Some(RecordState::Completed {
                    response: Some(response),
                    at,
                }),
            ) => {
                let taken = self.take_result(request, claim, response, at).await?;
                if !is_completed(&taken) {
                    return Ok(taken);
                }
                *clearance = Clearance::Rotated(RotatedKey { at: Some(at) });
                (Ok(taken), "given the other one's result")
            }
            (RotatedKeys::Refuse | RotatedKeys::Join, _) => {
                let refusal = refusal::key_rotated(at, policy.rotated_keys_window);
                (Err(refusal), "refused")
            }
        };
        observed.rotated_key();
        tracing::warn!(
            tool = &*request.call.tool,
            key_prefix = request.identity.key_prefix.as_deref(),
            record = %request.identity.id,
            at = at.map(tracing::field::display),
            does,
            "an equal call was made under another key; does the client make a new key for each attempt?"
        );
        cleared.map_err(Uncleared::Refused)
    }

    /// Claims the id that equal calls share. If the caller is dropped meanwhile, it is given back.
    async fn claim_shared(
        &self,
        request: &Request<'_>,
        rules: ModeRules,
        claim: &Claim,
        equal: EqualCalls,
        found: Found,
    ) -> Result<Claimed<Guard>, Failed> {
        let inner = Arc::clone(&self.inner);
        let policy = request.policy;
        let transaction = rules.mode == Mode::Transaction;
        let terms =
            GuardTerms::of_equal_calls(policy, transaction, inner.store.transaction_limit());
        let shared = Claim {
            id: equal.id,
            fingerprint: equal.fingerprint,
            // Operators resolve the call's own record.
            call: CallInfo::internal("rotated-keys"),
            key_prefix: None,
            on_expired: OnExpired::New,
            lease: terms.timing.lease,
            in_doubt_retention: if transaction {
                Duration::ZERO
            } else {
                terms.retention.min(policy.in_doubt_retention)
            },
            ..claim.clone()
        };
        DetachOnDrop::new(async move { inner.claim_equal(&shared, terms, found).await }).await
    }

    /// Gives this key a record with the other key's result, so that a retry is answered from it.
    async fn take_result(
        &self,
        request: &Request<'_>,
        claim: &Claim,
        response: Bytes,
        at: Timestamp,
    ) -> Result<Claimed<Option<Under>>, Failed> {
        let store = Arc::clone(&self.inner.store);
        let completion = plan::completion(request.policy, request.identity.kind, &response);
        // Nothing runs under this claim, so it leaves no doubt.
        let claim = Claim {
            in_doubt_retention: Duration::ZERO,
            ..claim.clone()
        };
        DetachOnDrop::new(async move {
            let lease = match store.claim(&claim).await?.held() {
                Ok(lease) => lease,
                Err(found) => return Ok(found),
            };
            let response = Some(response);
            Ok(match store.complete(&lease, completion).await? {
                LeaseEnd::Done(_) => {
                    let state = RecordState::Completed { response, at };
                    Claimed::Found(Record::new(claim.fingerprint, state))
                }
                LeaseEnd::Fenced => Claimed::InProgress,
            })
        })
        .await
    }
}

impl<S: Store> Inner<S> {
    /// A guard in doubt is taken over by another attempt of the same key: the call's own id decides
    /// whether that may run.
    async fn claim_equal(
        &self,
        shared: &Claim,
        terms: GuardTerms,
        found: Found,
    ) -> Result<Claimed<Guard>, Failed> {
        let claimed = self.claim_or_take_over(shared, |_, _| ready(Ok(Claimed::New(()))));
        // A doubt about the shared id is none about the call's own.
        let claimed = claimed.await.map_err(|Failed { error, .. }| error)?;
        let Taken { lease, asked, .. } = match claimed.held() {
            Ok(taken) => taken,
            Err(other) => return Ok(other),
        };
        let guard = self.hold_guard(lease, shared, terms, asked, found);
        Ok(Claimed::New(guard.await?))
    }
}

fn is_completed(found: &Claimed<Option<Under>>) -> bool {
    matches!(found, Claimed::Found(record) if matches!(record.state, RecordState::Completed { .. }))
}

/// Whether the record is this call's, in doubt, and its policy has a way out.
fn may_run_again(own: &Record, claim: &Claim, on_doubt: OnDoubt) -> bool {
    matches!(own.state, RecordState::InDoubt { .. })
        && own.fingerprint == claim.fingerprint
        && on_doubt != OnDoubt::Fail
}
