//! A call that has claimed its record, and what its attempt needs in order to end.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    flight::Leader,
    guard::{Clearance, Guard, GuardEnd},
    plan,
};
use crate::{
    answer::{Answer, RotatedKey, answer_from},
    error::Refusal,
    fingerprint::Identity,
    handler_result::{HandlerResult, ResultKind},
    policy::{OnDoubt, Policy},
    record::{Record, RecordState, Timestamp},
    refusal,
    store::{Claim, Completion},
    telemetry::ObservedCall,
};

/// A call that has claimed its record. It runs, and answers for all calls that join it.
pub(super) struct ClaimedCall {
    pub(super) identity: Identity,
    pub(super) claim: Claim,
    pub(super) policy: Arc<Policy>,
    pub(super) observed: ObservedCall,
    /// Set while a secret is replaced, or if the policy minds rotated keys.
    pub(super) guard: Option<Box<Guard>>,
    /// It runs although an equal call was made under another key.
    pub(super) rotated: Option<RotatedKey>,
    leader: Leader,
}

impl ClaimedCall {
    pub(super) fn new(
        identity: Identity,
        claim: Claim,
        policy: Arc<Policy>,
        clearance: Clearance,
        leader: Leader,
    ) -> Self {
        Self {
            identity,
            claim,
            policy,
            observed: ObservedCall::unobserved(),
            rotated: clearance.rotated(),
            guard: clearance.into_guard(),
            leader,
        }
    }

    /// Hands over the observation of this call. The receiver reports the outcome.
    pub(super) fn take_observed(&mut self) -> ObservedCall {
        std::mem::replace(&mut self.observed, ObservedCall::unobserved())
    }

    /// Like [`take_observed`](Self::take_observed), after the handler has ended.
    pub(super) fn handled(&mut self, kind: ResultKind) -> ObservedCall {
        self.observed.handled(kind);
        self.take_observed()
    }

    pub(super) fn completion(&self, response: &Bytes) -> Completion {
        let mut completion = plan::completion(&self.policy, self.identity.kind, response);
        if let Some(guard) = &self.guard {
            guard.join(&mut completion);
        }
        completion
    }

    /// Whether an error is small enough to record. Without its result, its record would say that the call
    /// took effect.
    pub(super) fn keeps(&self, error: &Bytes) -> bool {
        let is_kept = plan::is_kept(&self.policy, error);
        if !is_kept {
            tracing::warn!(
                tool = &*self.claim.call.tool,
                record = %self.identity.id,
                bytes = error.len(),
                "an error is too large to record"
            );
        }
        is_kept
    }

    /// Resolves when the call's guard is lost.
    pub(super) async fn guard_lost(&self) {
        match &self.guard {
            Some(guard) => guard.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Ends the call's guard.
    pub(super) async fn end_guard(&mut self, end: GuardEnd) {
        if let Some(guard) = self.guard.take() {
            guard.end(end).await;
        }
    }

    /// Calls that joined get the full result, even if it was too large to store.
    pub(super) fn share(self, response: Bytes, at: Timestamp) {
        self.share_state(RecordState::Completed {
            response: Some(response),
            at,
        });
    }

    /// Calls that joined are told what this state of the record means to them.
    pub(super) fn share_state(self, state: RecordState) {
        self.leader
            .share(&Record::new(self.identity.fingerprint, state));
    }

    /// Another call's record decides for this call, and for those that joined it.
    pub(super) fn lose_to(self, record: Record) -> Answer {
        if is_running(&record, &self.identity) {
            return self.step_down(refusal::in_progress());
        }
        let answer = answer_from(record.clone(), &self.identity, OnDoubt::Fail, false);
        self.leader.share(&record);
        answer
    }

    /// The attempt left no record. One waiting call claims anew.
    pub(super) fn fail(self) {
        self.leader.fail();
    }

    /// Like [`fail`](Self::fail), and this caller is refused.
    pub(super) fn refuse(self, refusal: Refusal) -> Answer {
        self.fail();
        refusal.into()
    }

    /// Another call now holds the key. The next waiting call leads, and finds out the state of the
    /// key.
    pub(super) fn step_down(self, refusal: Refusal) -> Answer {
        self.leader.step_down();
        refusal.into()
    }

    /// Stops other calls from waiting for this one, which may run for long.
    pub(super) fn resign(&self) {
        self.leader.resign();
    }

    /// Logs the record id, by which an operator finds the call.
    pub(super) fn warn_of_doubt(&self, kind: ResultKind) {
        tracing::warn!(
            tool = &*self.claim.call.tool,
            key_prefix = self.claim.key_prefix.as_deref(),
            record = %self.identity.id,
            ?kind,
            "a call is in doubt: its handler ended without telling whether it took effect"
        );
    }

    /// An intermediate round is shared with calls of the same round. After anything else one
    /// waiting call claims anew.
    pub(super) fn end_without_record<R: HandlerResult + ?Sized>(self, result: &R) -> Answer {
        if result.kind() == ResultKind::InputRequired
            && let Ok(response) = result.encode()
        {
            self.leader.input_required(&response);
        } else {
            self.leader.fail();
        }
        Answer::Executed
    }
}

impl std::fmt::Debug for ClaimedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimedCall")
            .field("call", &self.claim.call)
            .field("id", &self.identity.id)
            .finish_non_exhaustive()
    }
}

/// Whether the record says that this call is running elsewhere, under a lease.
pub(super) fn is_running(record: &Record, identity: &Identity) -> bool {
    matches!(record.state, RecordState::InProgress { .. }) && identity.is_of(record.fingerprint)
}
