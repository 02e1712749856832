//! An attempt in lease mode.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tracing::Instrument as _;

use super::{Context, Interrupted, end_without_record, holding};
use crate::{
    engine::{
        Answer, answer,
        plan::{self, LeasePlan},
    },
    error::{Action, CommitOutcome, ErrorKind, Refusal},
    outcome::HandlerResult,
    record::{Record, RecordState},
    store::{Lease, LeaseEnd, Store},
    telemetry::{ObservedCall, Outcome},
};

/// A lease that somebody has to finish. Dropped before the handler started it is released, after
/// that its record is in doubt.
pub(in crate::engine) struct HeldLease<S: Store> {
    store: Arc<S>,
    lease: Option<Lease>,
    started: bool,
}

impl<S: Store> HeldLease<S> {
    pub(in crate::engine) const fn new(store: Arc<S>, lease: Lease) -> Self {
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
    pub(in crate::engine) const fn new(held: HeldLease<S>, context: Context) -> Self {
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
