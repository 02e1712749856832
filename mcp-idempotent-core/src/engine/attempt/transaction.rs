//! An attempt in transaction mode.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};
use tracing::Instrument as _;

use super::{Context, Interrupted, end_without_record, holding, run_for};
use crate::{
    engine::{
        Answer, answer,
        plan::{self, TransactionPlan},
        rotation::GuardEnd,
    },
    outcome::HandlerResult,
    policy::OnDoubt,
    store::{End, Ended, TransactionStore},
    telemetry::{ObservedCall, Outcome},
};

/// An attempt in transaction mode. Dropping it rolls the handler's writes back, records nothing,
/// and lets one of those who wait claim anew.
pub struct TransactionAttempt<S: TransactionStore> {
    pub(in crate::engine) store: Arc<S>,
    pub(in crate::engine) transaction: S::Transaction,
    pub(in crate::engine) context: Context,
}

impl<S: TransactionStore> TransactionAttempt<S> {
    pub(in crate::engine) const fn new(
        store: Arc<S>,
        transaction: S::Transaction,
        context: Context,
    ) -> Self {
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
        let Some(mut protected) = protected else {
            let end = match plan {
                TransactionPlan::Commit => End::CommitUnrecorded,
                TransactionPlan::RollBackAndRecord | TransactionPlan::RollBack => End::RollBack,
            };
            let committing = matches!(end, End::CommitUnrecorded);
            return match store.end(transaction, None, end).await {
                Ended::AsAsked(_) => Answer::Executed,
                Ended::Aborted(_) if !committing => Answer::Executed,
                Ended::Aborted(error) => Answer::Refused(answer::not_committed(error)),
                Ended::EndedByHandler => Answer::Refused(answer::ended_by_handler(OnDoubt::Fail)),
                Ended::Unknown(error) => Answer::Refused(answer::commit_unknown(error)),
                Ended::Lost(_) | Ended::LostInProgress | Ended::Fenced => {
                    Answer::Refused(answer::in_progress())
                }
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
        if let Some(guard) = &mut protected.guard {
            guard.committing();
        }
        let ended = store.end(transaction, Some(&protected.claim), end).await;
        let recorded = response
            .as_ref()
            .map(|response| protected.completion(&policy, response));
        protected.end_guard(GuardEnd::after(&ended, recorded)).await;
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
            // A store answers `Fenced` to the end of a lease alone.
            (Ended::LostInProgress | Ended::Fenced, _) => {
                protected.leader.step_down();
                Answer::Refused(answer::in_progress())
            }
            (Ended::EndedByHandler, _) => {
                observed.note(Outcome::LeftInDoubt);
                protected.refuse(answer::ended_by_handler(OnDoubt::Fail))
            }
            (Ended::Unknown(error), _) => protected.refuse(answer::commit_unknown(error)),
        }
    }
}

impl<S: TransactionStore> std::fmt::Debug for TransactionAttempt<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionAttempt")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
