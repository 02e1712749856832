//! An attempt: one run of the handler under a claim.

use std::{cell::RefCell, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::runtime::Handle;
use tracing::Instrument as _;

use super::{
    Answer, Request,
    answer::{self, Decision},
    flight::Leader,
    plan::{self, LeasePlan, TransactionPlan},
};
use crate::{
    error::{Action, CommitOutcome, ErrorKind, Refusal},
    fingerprint::{Identity, RecordId},
    outcome::{HandlerResult, ResultKind},
    policy::Policy,
    record::{Record, RecordState, Timestamp},
    store::{Claim, Completion, End, Ended, Lease, LeaseEnd, Store, TransactionStore},
    telemetry::{ObservedCall, Outcome},
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
    ) -> Self {
        Self {
            protected: Some(Box::new(Protected {
                identity: identity.clone(),
                claim,
                leader,
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
    fn completion(&self, policy: &Policy, response: &Bytes) -> Completion {
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
    fn share(self, response: Bytes, at: Timestamp) {
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
        match answer::decide(record.clone(), &self.identity, false) {
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

/// An attempt in transaction mode. Dropping it rolls the handler's writes back, records nothing,
/// and lets one of those who wait claim anew.
pub struct TransactionAttempt<S: TransactionStore> {
    pub(super) store: Arc<S>,
    pub(super) transaction: S::Transaction,
    pub(super) context: Context,
}

impl<S: TransactionStore> TransactionAttempt<S> {
    pub(super) const fn new(store: Arc<S>, transaction: S::Transaction, context: Context) -> Self {
        Self {
            store,
            transaction,
            context,
        }
    }

    /// The open transaction. Neither commit it nor roll it back; a nested `begin` is a savepoint.
    pub fn connection(&mut self) -> &mut S::Connection {
        &mut self.transaction
    }

    /// Runs the handler on the open transaction, in this task.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; finish the attempt with a result of kind
    /// [`ResultKind::Interrupted`](crate::ResultKind::Interrupted).
    pub async fn run<T>(
        &mut self,
        handler: impl for<'c> FnOnce(&'c mut S::Connection) -> BoxFuture<'c, T>,
    ) -> Result<T, Interrupted> {
        let context = &self.context;
        let transaction = &mut *self.transaction;
        // Calling the handler may panic too, before there is a future.
        let handler = AssertUnwindSafe(async move { handler(transaction).await }).catch_unwind();
        run_for(self.store.transaction_limit(), holding(context, handler)).await
    }

    /// Ends the transaction as the handler's result and the policy say, and answers the caller.
    /// [`Answer::Executed`] means that the handler's own result is the answer.
    pub async fn finish<R: HandlerResult + ?Sized>(mut self, result: &R) -> Answer {
        let mut observed = self.context.handled(result.kind());
        let span = observed.span();
        let answer = self.end(result, &mut observed).instrument(span).await;
        observed.answered(&answer);
        answer
    }

    async fn end<R>(self, result: &R, observed: &mut ObservedCall) -> Answer
    where
        R: HandlerResult + ?Sized,
    {
        let Self {
            store,
            transaction,
            context: Context {
                protected, policy, ..
            },
        } = self;
        let kind = result.kind();
        let key = protected.as_ref().map(|protected| protected.identity.kind);
        let plan = plan::transaction(kind, policy.on_error, key);
        let Some(protected) = protected else {
            let end = match plan {
                TransactionPlan::Commit => End::CommitUnrecorded,
                TransactionPlan::RollBackAndRecord | TransactionPlan::RollBack => End::RollBack,
            };
            let committing = matches!(end, End::CommitUnrecorded);
            return match store.end(transaction, None, end).await {
                Ended::AsAsked(_) => Answer::Executed,
                Ended::Aborted(_) if !committing => Answer::Executed,
                Ended::Aborted(error) => Answer::Refused(answer::not_committed(error)),
                Ended::EndedByHandler => Answer::Refused(answer::ended_by_handler()),
                Ended::Unknown(error) => Answer::Refused(answer::commit_unknown(error)),
                Ended::Lost(_) | Ended::LostInProgress => Answer::Refused(answer::in_progress()),
            };
        };
        let response = if plan == TransactionPlan::RollBack {
            None
        } else {
            match result.encode() {
                Ok(response) => Some(response),
                Err(error) => {
                    drop(transaction);
                    return protected.refuse(answer::encode_failed(error));
                }
            }
        };
        let end = match (&response, plan) {
            (Some(response), TransactionPlan::Commit) => {
                End::Commit(protected.completion(&policy, response))
            }
            (Some(response), TransactionPlan::RollBackAndRecord) => {
                End::RollBackAndRecord(protected.completion(&policy, response))
            }
            (_, TransactionPlan::RollBack) | (None, _) => End::RollBack,
        };
        let ended = store.end(transaction, Some(&protected.claim), end).await;
        match (ended, response) {
            (Ended::AsAsked(at), Some(response)) => {
                protected.share(response, at);
                Answer::Executed
            }
            (Ended::AsAsked(_), None) => {
                end_without_record(protected.leader, kind, result);
                Answer::Executed
            }
            // The handler said itself that it failed, and its writes are gone: that is the answer.
            (Ended::Aborted(_), _) if plan != TransactionPlan::Commit => {
                protected.leader.fail();
                Answer::Executed
            }
            (Ended::Aborted(error), _) => protected.refuse(answer::not_committed(error)),
            (Ended::Lost(record), _) => protected.lose_to(record),
            (Ended::LostInProgress, _) => {
                protected.leader.step_down();
                Answer::Refused(answer::in_progress())
            }
            (Ended::EndedByHandler, _) => {
                observed.note(Outcome::LeftInDoubt);
                protected.refuse(answer::ended_by_handler())
            }
            (Ended::Unknown(error), _) => protected.refuse(answer::commit_unknown(error)),
        }
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

impl<S: TransactionStore> std::fmt::Debug for TransactionAttempt<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionAttempt")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// A lease that somebody has to finish. Dropped before the handler started it is released, after
/// that its record is in doubt.
pub(super) struct HeldLease<S: Store> {
    store: Arc<S>,
    lease: Option<Lease>,
    started: bool,
}

impl<S: Store> HeldLease<S> {
    pub(super) const fn new(store: Arc<S>, lease: Lease) -> Self {
        Self {
            store,
            lease: Some(lease),
            started: false,
        }
    }
}

impl<S: Store> Drop for HeldLease<S> {
    fn drop(&mut self) {
        let (Some(lease), Ok(runtime)) = (self.lease.take(), Handle::try_current()) else {
            return;
        };
        let (store, started) = (Arc::clone(&self.store), self.started);
        drop(runtime.spawn(async move {
            let ended = if started {
                store.abandon(&lease).await
            } else {
                store.release(&lease).await
            };
            if let Err(error) = ended {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a dropped attempt could not be told to the store; its lease will lapse"
                );
            }
        }));
    }
}

/// An attempt in lease mode. Dropping it after the handler started leaves the record in doubt.
pub struct LeaseAttempt<S: Store> {
    held: HeldLease<S>,
    context: Context,
}

impl<S: Store> LeaseAttempt<S> {
    pub(super) const fn new(held: HeldLease<S>, context: Context) -> Self {
        Self { held, context }
    }

    /// Runs the handler, in this task.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; finish the attempt with a result of kind
    /// [`ResultKind::Interrupted`](crate::ResultKind::Interrupted).
    pub async fn run<T>(&mut self, handler: impl Future<Output = T>) -> Result<T, Interrupted> {
        self.held.started = true;
        holding(&self.context, AssertUnwindSafe(handler).catch_unwind())
            .await
            .map_err(|_| Interrupted::Panicked)
    }

    /// Ends the attempt as the handler's result and the policy say, and answers the caller.
    /// [`Answer::Executed`] means that the handler's own result is the answer.
    pub async fn finish<R: HandlerResult + ?Sized>(mut self, result: &R) -> Answer {
        let mut observed = self.context.handled(result.kind());
        let span = observed.span();
        let answer = self.end(result, &mut observed).instrument(span).await;
        observed.answered(&answer);
        answer
    }

    async fn end<R>(self, result: &R, observed: &mut ObservedCall) -> Answer
    where
        R: HandlerResult + ?Sized,
    {
        let Self {
            mut held,
            context: Context {
                protected, policy, ..
            },
        } = self;
        let (Some(protected), Some(lease)) = (protected, held.lease.clone()) else {
            return Answer::Executed;
        };
        let kind = result.kind();
        match plan::lease(kind, policy.on_error, protected.identity.kind) {
            LeasePlan::Record => {
                let response = match result.encode() {
                    Ok(response) => response,
                    Err(error) => {
                        // The handler has acted: dropping the lease leaves it in doubt.
                        observed.note(Outcome::LeftInDoubt);
                        drop(answer::encode_failed(error));
                        return protected.refuse(Refusal::new(
                            ErrorKind::OutcomeUnknown,
                            CommitOutcome::Unknown,
                            Action::AskOperator,
                            "The call ran, but its result could not be encoded. It may have taken \
                             effect; ask the operator to look before repeating it.",
                        ));
                    }
                };
                let completion = protected.completion(&policy, &response);
                let ended = held.store.complete(&lease, completion).await;
                held.lease = None;
                match ended {
                    Ok(LeaseEnd::Done(at)) => {
                        protected.share(response, at);
                        Answer::Executed
                    }
                    Ok(LeaseEnd::Fenced) => {
                        observed.note(Outcome::Fenced);
                        protected.refuse(answer::fenced())
                    }
                    Err(error) => {
                        // The effect has happened and its result is known: the one caller who is
                        // here gets it. A retry finds the record in doubt.
                        tracing::error!(
                            error = &error as &dyn std::error::Error,
                            "a result could not be recorded; its call is in doubt once the lease ends"
                        );
                        observed.note(Outcome::LeftInDoubt);
                        protected.leader.fail();
                        Answer::Executed
                    }
                }
            }
            LeasePlan::Release => {
                let ended = held.store.release(&lease).await;
                held.lease = None;
                if let Err(error) = ended {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "a claim could not be released; its call is in doubt once the lease ends"
                    );
                }
                end_without_record(protected.leader, kind, result);
                Answer::Executed
            }
            LeasePlan::InDoubt => {
                tracing::warn!(
                    tool = &*protected.claim.call.tool,
                    key_prefix = protected.claim.key_prefix.as_deref(),
                    ?kind,
                    "a call is in doubt: its handler ended without telling whether it took effect"
                );
                observed.note(Outcome::LeftInDoubt);
                let ended = held.store.abandon(&lease).await;
                held.lease = None;
                if let Err(error) = ended {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "an attempt in doubt could not be told to the store; its lease will lapse"
                    );
                }
                protected.leader.share(&Record::new(
                    protected.identity.fingerprint,
                    RecordState::InDoubt,
                ));
                Answer::Executed
            }
        }
    }
}

impl<S: Store> std::fmt::Debug for LeaseAttempt<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseAttempt")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
