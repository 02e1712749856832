//! An attempt in lease mode.

use std::{future::Future, panic::AssertUnwindSafe};

use futures_util::FutureExt as _;
use tracing::Instrument as _;

use super::{Context, HeldLease, Interrupted, Protected, end_without_record, holding};
use crate::{
    engine::{
        Answer, answer,
        lease::{Ending, LeaseHandle, Left},
        plan::{self, LeasePlan},
        rotation::GuardEnd,
    },
    error::{Action, CommitOutcome, ErrorKind, Refusal},
    outcome::{HandlerResult, ResultKind},
    policy::{OnDoubt, Policy},
    record::{Record, RecordState, Timestamp},
    store::{Ended, LeaseEnd, Store},
    telemetry::{ObservedCall, Outcome},
};

/// An attempt in lease mode. Dropping it after the handler started leaves the record in doubt.
pub struct LeaseAttempt<S: Store> {
    pub(in crate::engine) held: HeldLease<S>,
    pub(in crate::engine) context: Context,
}

impl<S: Store> LeaseAttempt<S> {
    pub(in crate::engine) const fn new(held: HeldLease<S>, context: Context) -> Self {
        Self { held, context }
    }

    /// What the handler can know of its lease, and do under it.
    #[must_use]
    pub fn handle(&self) -> LeaseHandle {
        self.held.handle()
    }

    /// Runs the handler, in this task. A handler that holds a
    /// [transaction](crate::engine::LeaseTransaction) for longer than the store allows is dropped.
    /// One that goes on after its lease is lost keeps nobody waiting any more.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; finish the attempt with a result of kind
    /// [`ResultKind::Interrupted`](crate::ResultKind::Interrupted).
    pub async fn run<T>(&mut self, handler: impl Future<Output = T>) -> Result<T, Interrupted> {
        self.held.started = true;
        if let Some(guard) = self.context.guard() {
            guard.started();
        }
        let (kept, context) = (&self.held.kept, &self.context);
        let handler = holding(context, AssertUnwindSafe(handler).catch_unwind());
        let over_time = async {
            match kept.store.transaction_limit() {
                Some(_) => kept.over_time().await,
                None => std::future::pending().await,
            }
        };
        let lost = async {
            kept.lost().await;
            if let Some(protected) = &context.protected {
                protected.leader.resign();
            }
            std::future::pending().await
        };
        tokio::select! {
            biased;
            ended = handler => ended.map_err(|_| Interrupted::Panicked),
            () = over_time => Err(Interrupted::OverTime),
            () = lost => unreachable!("it waits for ever"),
        }
    }

    /// Ends the attempt as the handler's result and the policy say, and answers the caller.
    /// [`Answer::Executed`] means that the handler's own result is the answer.
    pub async fn finish<R: HandlerResult + ?Sized>(mut self, result: &R) -> Answer {
        let mut observed = self.context.handled(result.kind());
        if self.held.in_doubt {
            observed.ran_again();
        }
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
        let kind = result.kind();
        held.kept.returned();
        let left = held.kept.close_transaction();
        let Some(mut protected) = protected else {
            return end_unprotected(kind, left).await;
        };
        let transaction = match left {
            Left::Nothing => None,
            Left::Transaction(transaction) => Some(transaction),
            Left::StillHeld => {
                observed.note(Outcome::LeftInDoubt);
                let refusal = answer::still_held(held.on_doubt);
                // Where one transaction keeps everybody from writing, the one that is still held
                // keeps this from being written too. The caller need not wait for it.
                if held.kept.store.transaction_limit().is_some() {
                    drop(held);
                } else {
                    held.abandon().await;
                }
                return protected.refuse(refusal);
            }
        };
        let plan = match plan::lease(kind, policy.on_error, protected.identity.kind) {
            // This attempt may have done nothing; the one before it may have acted.
            LeasePlan::Release if held.in_doubt => LeasePlan::InDoubt,
            plan => plan,
        };
        // Only a success commits what was written; an error is recorded without it.
        let transaction = match transaction {
            Some(transaction) if !commits(kind) => {
                // What it committed itself cannot be rolled back: whatever it says of the call, the
                // key is not free.
                if let Ended::EndedByHandler = transaction.roll_back().await {
                    observed.note(Outcome::LeftInDoubt);
                    held.abandon().await;
                    return protected.refuse(answer::ended_by_handler(held.on_doubt));
                }
                None
            }
            kept => kept,
        };
        match plan {
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
                match transaction {
                    Some(transaction) => {
                        complete_with(held, transaction, protected, &policy, response, observed)
                            .await
                    }
                    None => complete(held, protected, &policy, response, observed).await,
                }
            }
            LeasePlan::Release => {
                let acted = !matches!(kind, ResultKind::NotExecuted | ResultKind::NotCalled);
                held.release(acted).await;
                protected.end_guard(GuardEnd::Release { acted }).await;
                end_without_record(protected.leader, kind, result);
                Answer::Executed
            }
            LeasePlan::InDoubt => {
                tracing::warn!(
                    tool = &*protected.claim.call.tool,
                    key_prefix = protected.claim.key_prefix.as_deref(),
                    record = %protected.identity.id,
                    ?kind,
                    "a call is in doubt: its handler ended without telling whether it took effect"
                );
                observed.note(Outcome::LeftInDoubt);
                held.abandon().await;
                protected.end_guard(GuardEnd::Abandon).await;
                protected.share_in_doubt(&held);
                Answer::Executed
            }
        }
    }
}

const fn commits(kind: ResultKind) -> bool {
    matches!(kind, ResultKind::Success | ResultKind::Task)
}

async fn complete<S: Store>(
    mut held: HeldLease<S>,
    mut protected: Box<Protected>,
    policy: &Policy,
    response: bytes::Bytes,
    observed: &mut ObservedCall,
) -> Answer {
    match held.complete(&protected, policy, &response).await {
        Ok(LeaseEnd::Done(at)) => {
            let completion = protected.completion(policy, &response);
            protected.end_guard(GuardEnd::Complete(completion)).await;
            protected.share(response, at);
            Answer::Executed
        }
        Ok(LeaseEnd::Fenced) => {
            observed.note(Outcome::Fenced);
            protected.refuse(answer::fenced(held.on_doubt))
        }
        Err(error) => {
            // The effect has happened and its result is known: the one caller who is here gets
            // it. A retry finds the record in doubt.
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

/// The handler has acted outside, and its writes commit together with the record. Where they do
/// not, the outside call may have been made all the same.
async fn complete_with<S: Store>(
    mut held: HeldLease<S>,
    transaction: Box<dyn Ending>,
    mut protected: Box<Protected>,
    policy: &Policy,
    response: bytes::Bytes,
    observed: &mut ObservedCall,
) -> Answer {
    let Some(lease) = held.kept.lease().cloned() else {
        return Answer::Executed;
    };
    let completion = protected.completion(policy, &response);
    match transaction.complete(lease, completion.clone()).await {
        Ended::AsAsked(at) => {
            held.finished = true;
            protected.end_guard(GuardEnd::Complete(completion)).await;
            protected.share(response, at);
            Answer::Executed
        }
        Ended::Fenced | Ended::Lost(_) | Ended::LostInProgress => {
            held.finished = true;
            observed.note(Outcome::Fenced);
            protected.refuse(answer::fenced(held.on_doubt))
        }
        Ended::Aborted(error) => {
            observed.note(Outcome::LeftInDoubt);
            held.abandon().await;
            protected.refuse(answer::not_committed_after_acting(error, held.on_doubt))
        }
        Ended::EndedByHandler => {
            observed.note(Outcome::LeftInDoubt);
            held.abandon().await;
            protected.refuse(answer::ended_by_handler(held.on_doubt))
        }
        // The commit may still be under way: the lease lapses into doubt, or is completed.
        Ended::Unknown(error) => {
            held.finished = true;
            protected.refuse(answer::commit_unknown(error))
        }
    }
}

async fn end_unprotected(kind: ResultKind, left: Left) -> Answer {
    match left {
        Left::Nothing => Answer::Executed,
        Left::StillHeld => Answer::Refused(answer::still_held(OnDoubt::Fail)),
        Left::Transaction(transaction) if !commits(kind) => match transaction.roll_back().await {
            Ended::EndedByHandler => Answer::Refused(answer::ended_by_handler(OnDoubt::Fail)),
            _ => Answer::Executed,
        },
        Left::Transaction(transaction) => match transaction.commit().await {
            Ended::AsAsked(_) => Answer::Executed,
            Ended::Aborted(error) => {
                Answer::Refused(answer::not_committed_after_acting(error, OnDoubt::Fail))
            }
            Ended::EndedByHandler => Answer::Refused(answer::ended_by_handler(OnDoubt::Fail)),
            Ended::Unknown(error) => Answer::Refused(answer::commit_unknown(error)),
            Ended::Lost(_) | Ended::LostInProgress | Ended::Fenced => {
                Answer::Refused(answer::in_progress())
            }
        },
    }
}

impl Protected {
    /// Those who joined are told what a record in doubt means to them.
    pub(in crate::engine) fn share_in_doubt<S: Store>(self, held: &HeldLease<S>) {
        let lease = held.kept.lease();
        self.leader.share(&Record::new(
            self.identity.fingerprint,
            RecordState::InDoubt {
                token: lease.map_or(0, |lease| lease.token),
                attempts: lease.map_or(1, |lease| lease.attempts),
                since: Timestamp::from_micros(0),
            },
        ));
    }
}

impl<S: Store> std::fmt::Debug for LeaseAttempt<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseAttempt")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
