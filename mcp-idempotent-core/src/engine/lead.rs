//! A call that leads: what its attempt needs to end it.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    flight::Leader,
    plan,
    rotation::guard::{Guard, GuardEnd},
};
use crate::{
    answer::{Answer, answer_from},
    error::Refusal,
    fingerprint::Identity,
    outcome::{HandlerResult, ResultKind},
    policy::{OnDoubt, OnExpired, Policy},
    record::{Record, RecordState, Timestamp},
    refusal,
    store::{Claim, Completion},
    telemetry::ObservedCall,
};

/// A call that leads: it holds the claim, runs, and answers for all who join it.
pub(super) struct Lead {
    pub(super) identity: Identity,
    pub(super) claim: Claim,
    pub(super) policy: Arc<Policy>,
    pub(super) observed: ObservedCall,
    /// While a secret is replaced.
    pub(super) guard: Option<Guard>,
    leader: Leader,
}

impl Lead {
    pub(super) const fn new(
        identity: Identity,
        claim: Claim,
        policy: Arc<Policy>,
        guard: Option<Guard>,
        leader: Leader,
    ) -> Self {
        Self {
            identity,
            claim,
            policy,
            observed: ObservedCall::unobserved(),
            guard,
            leader,
        }
    }

    /// What is seen of the call, for the one who answers it.
    pub(super) fn take_observed(&mut self) -> ObservedCall {
        std::mem::replace(&mut self.observed, ObservedCall::unobserved())
    }

    /// As [`take_observed`](Self::take_observed): the handler has ended.
    pub(super) fn handled(&mut self, kind: ResultKind) -> ObservedCall {
        self.observed.handled(kind);
        self.take_observed()
    }

    pub(super) fn completion(&self, response: &Bytes) -> Completion {
        let policy = &self.policy;
        let fits = response.len() <= policy.max_result_bytes;
        let mut completion = Completion::new(
            fits.then(|| response.clone()),
            plan::retention(policy, self.identity.kind),
        );
        if policy.on_expired == OnExpired::Refuse {
            completion.tombstone = policy.tombstone;
        }
        completion
    }

    /// Ends what guards the call under its previous identity.
    pub(super) async fn end_guard(&mut self, end: GuardEnd) {
        if let Some(guard) = self.guard.take() {
            guard.end(end).await;
        }
    }

    /// The result is recorded; so it is under the previous identity.
    pub(super) async fn complete_guard(&mut self, response: &Bytes) {
        if self.guard.is_some() {
            let completion = self.completion(response);
            self.end_guard(GuardEnd::Complete(completion)).await;
        }
    }

    /// Those who joined get the full result, also where it was too large to store.
    pub(super) fn share(self, response: Bytes, at: Timestamp) {
        self.share_state(RecordState::Completed {
            response: Some(response),
            at,
        });
    }

    /// Those who joined are told what this state of the record means to them.
    pub(super) fn share_state(self, state: RecordState) {
        self.leader
            .share(&Record::new(self.identity.fingerprint, state));
    }

    /// The record of another call decides for this one, and for those who joined it.
    pub(super) fn lose_to(self, record: Record) -> Answer {
        if is_running(&record, &self.identity) {
            return self.step_down(refusal::in_progress());
        }
        let answer = answer_from(record.clone(), &self.identity, OnDoubt::Fail, false);
        self.leader.share(&record);
        answer
    }

    /// The attempt left no record: one of those who wait claims anew.
    pub(super) fn fail(self) {
        self.leader.fail();
    }

    /// As [`fail`](Self::fail), and this caller is refused.
    pub(super) fn refuse(self, refusal: Refusal) -> Answer {
        self.fail();
        refusal.into()
    }

    /// Another call holds the key by now: the next one leads, and finds out where it stands.
    pub(super) fn step_down(self, refusal: Refusal) -> Answer {
        self.leader.step_down();
        refusal.into()
    }

    /// Keeps nobody waiting any more, while this call may go on for long.
    pub(super) fn resign(&self) {
        self.leader.resign();
    }

    /// An intermediate round is shared with its like; after anything else one waiter claims anew.
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

impl std::fmt::Debug for Lead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lead")
            .field("call", &self.claim.call)
            .field("id", &self.identity.id)
            .finish_non_exhaustive()
    }
}

/// Whether a record says that this very call runs elsewhere, under a lease.
pub(super) fn is_running(record: &Record, identity: &Identity) -> bool {
    matches!(record.state, RecordState::InProgress { .. }) && identity.is_of(record.fingerprint)
}
