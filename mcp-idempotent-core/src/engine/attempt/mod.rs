//! An attempt: one run of the handler under a claim.

mod held;
mod lease;
mod transaction;

use std::{cell::RefCell, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use tracing::Instrument as _;

pub(super) use self::held::HeldLease;
pub use self::{lease::LeaseAttempt, transaction::TransactionAttempt};
use super::{
    Answer, Request,
    answer::{self, Decision},
    flight::Leader,
    plan,
    rotation::{Guard, GuardEnd},
};
use crate::{
    error::Refusal,
    fingerprint::{Identity, RecordId},
    outcome::{HandlerResult, ResultKind},
    policy::Policy,
    record::{Record, RecordState, Timestamp},
    store::{Claim, Completion},
    telemetry::ObservedCall,
};

tokio::task_local! {
    /// The records whose handlers run in this task, so that a call that would wait for itself is
    /// refused instead.
    static HELD: RefCell<Vec<RecordId>>;
}

pub(super) fn is_held_by_this_task(id: RecordId) -> bool {
    HELD.try_with(|held| held.borrow().contains(&id))
        .unwrap_or(false)
}

/// Runs a handler, seen from outside and known to its task.
pub(super) async fn holding<F: Future>(context: &Context, future: F) -> F::Output {
    let _timed = context.observed.handler();
    let future = future.instrument(context.observed.span());
    let Some(id) = context.id() else {
        return future.await;
    };
    let mut held = HELD
        .try_with(|held| held.borrow().clone())
        .unwrap_or_default();
    held.push(id);
    HELD.scope(RefCell::new(held), future).await
}

/// Why a handler has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interrupted {
    /// It panicked. The panic hook has already reported it.
    Panicked,
    /// It held its transaction for longer than the store allows, and was dropped.
    OverTime,
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Panicked => "the handler panicked",
            Self::OverTime => "the handler held its transaction for too long",
        })
    }
}

impl std::error::Error for Interrupted {}

/// Runs a handler for as long as it may hold its transaction.
pub(super) async fn run_for<T, P>(
    limit: Option<Duration>,
    handler: impl Future<Output = Result<T, P>>,
) -> Result<T, Interrupted> {
    let ended = match limit {
        Some(limit) => tokio::time::timeout(limit, handler)
            .await
            .map_err(|_| Interrupted::OverTime)?,
        None => handler.await,
    };
    ended.map_err(|_| Interrupted::Panicked)
}

/// What an attempt needs to know of its call.
pub(super) struct Context {
    /// In a box: an attempt is moved a few times, and its bytes with it.
    pub(super) protected: Option<Box<Protected>>,
    policy: Arc<Policy>,
    call: crate::store::CallInfo,
    observed: ObservedCall,
}

pub(super) struct Protected {
    identity: Identity,
    claim: Claim,
    leader: Leader,
    /// While a secret is replaced.
    pub(super) guard: Option<Guard>,
}

impl Context {
    pub(super) fn unprotected(request: &Request<'_>) -> Self {
        Self {
            protected: None,
            policy: Arc::clone(request.policy),
            call: request.call.clone(),
            observed: ObservedCall::unobserved(),
        }
    }

    pub(super) fn protected(
        request: &Request<'_>,
        identity: &Identity,
        claim: Claim,
        leader: Leader,
        guard: Option<Guard>,
    ) -> Self {
        Self {
            protected: Some(Box::new(Protected {
                identity: identity.clone(),
                claim,
                leader,
                guard,
            })),
            policy: Arc::clone(request.policy),
            call: request.call.clone(),
            observed: ObservedCall::unobserved(),
        }
    }

    pub(super) fn id(&self) -> Option<RecordId> {
        self.protected
            .as_ref()
            .map(|protected| protected.identity.id)
    }

    fn guard(&mut self) -> Option<&mut Guard> {
        self.protected.as_mut()?.guard.as_mut()
    }

    pub(super) fn observed_by(self, observed: ObservedCall) -> Self {
        Self { observed, ..self }
    }

    /// The handler has ended.
    pub(super) fn handled(&mut self, kind: ResultKind) -> ObservedCall {
        self.observed.handled(kind, self.protected.is_some());
        std::mem::replace(&mut self.observed, ObservedCall::unobserved())
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("call", &self.call)
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

impl Protected {
    /// The attempt before was found not to have acted.
    pub(in crate::engine) fn verified(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.verified();
        }
    }

    pub(in crate::engine) async fn complete_guard(&mut self, policy: &Policy, response: &Bytes) {
        let completion = self.completion(policy, response);
        self.end_guard(GuardEnd::Complete(completion)).await;
    }

    pub(super) async fn end_guard(&mut self, end: GuardEnd) {
        if let Some(guard) = self.guard.take() {
            guard.end(end).await;
        }
    }

    pub(super) fn completion(&self, policy: &Policy, response: &Bytes) -> Completion {
        let fits = response.len() <= policy.max_result_bytes;
        let mut completion = Completion::new(
            fits.then(|| response.clone()),
            plan::retention(policy, self.identity.kind),
        );
        if policy.on_expired == crate::policy::OnExpired::Refuse {
            completion.tombstone = policy.tombstone;
        }
        completion
    }

    /// Those who joined get the full result, also where it was too large to store.
    pub(super) fn share(self, response: Bytes, at: Timestamp) {
        self.leader.share(&Record::new(
            self.identity.fingerprint,
            RecordState::Completed {
                response: Some(response),
                at,
            },
        ));
    }

    /// The record of another call decides for this one, and for those who joined it.
    fn lose_to(self, record: Record) -> Answer {
        let on_doubt = crate::policy::OnDoubt::Fail;
        match answer::decide(record.clone(), &self.identity, on_doubt, false) {
            Decision::Answer(answer) => {
                self.leader.share(&record);
                answer
            }
            Decision::InProgress => {
                self.leader.step_down();
                Answer::Refused(answer::in_progress())
            }
        }
    }

    pub(super) fn refuse(self, refusal: Refusal) -> Answer {
        self.leader.fail();
        Answer::Refused(refusal)
    }
}

/// An intermediate round is shared with its like; anything else wakes one waiter.
fn end_without_record<R: HandlerResult + ?Sized>(leader: Leader, kind: ResultKind, result: &R) {
    if kind == ResultKind::InputRequired
        && let Ok(response) = result.encode()
    {
        leader.input_required(&response);
    } else {
        leader.fail();
    }
}
