//! Transaction mode on one page: begin, run, end.
//!
//! The claim opens the transaction, the handler writes through it, and the record is written when
//! it commits. Effect, record and result become durable together or not at all.

use std::{
    future::Future,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tracing::Instrument as _;

use super::{
    Engine, Request,
    claim::Beginning,
    claimed_call::ClaimedCall,
    guard::GuardEnd,
    handler::{self, Interrupted, Stop, TimeLimit},
    lent::lock,
    plan::{self, ModeRules, TransactionPlan},
};
use crate::{
    answer::{Answer, RotatedKey},
    fingerprint::RecordId,
    handler_result::{HandlerResult, ResultKind},
    policy::OnDoubt,
    refusal,
    store::{End, Ended, TransactionStore},
    telemetry::{Mode, ObservedCall, Outcome},
};

/// A transaction is never run again or verified, whatever the policy says about leases, and never
/// runs without its store.
const RULES: ModeRules = ModeRules {
    mode: Mode::Transaction,
    fail_open: false,
    on_doubt: OnDoubt::Fail,
};

impl<S: TransactionStore> Engine<S> {
    /// Begins a call in transaction mode. Returns the open transaction, and the attempt that ends
    /// it. Dropping both rolls back. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// There is already an answer. The handler does not run.
    pub async fn begin_transaction(
        &self,
        request: Request<'_>,
    ) -> Result<(S::Transaction, TransactionAttempt<S>), Answer> {
        if let Err(refusal) = request.check_policy(None) {
            let observed = request.observe(&self.inner.application, Mode::Transaction);
            observed.refused(&refusal);
            return Err(refusal.into());
        }
        let begun = self
            .begin_call(&request, RULES, |claim, _| {
                let store = &self.inner.store;
                async move { Ok(store.begin(&claim.call, Some(&claim)).await?) }
            })
            .await;
        match begun {
            Beginning::Claimed(transaction, call) => {
                let store = Arc::clone(&self.inner.store);
                let attempt = TransactionAttempt {
                    session_over: Mutex::new(store.session_over(&transaction)),
                    store,
                    call,
                    stop: Stop::default(),
                };
                Ok((transaction, attempt))
            }
            Beginning::Answer(answer) => Err(answer),
            Beginning::FailOpen => unreachable!("transaction mode never fails open"),
        }
    }
}

/// One attempt in transaction mode. If it is dropped, nothing is recorded, and one waiting call
/// claims anew.
pub struct TransactionAttempt<S: TransactionStore> {
    store: Arc<S>,
    call: Box<ClaimedCall>,
    stop: Stop,
    /// Taken by the run.
    session_over: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl<S: TransactionStore> TransactionAttempt<S> {
    /// The record that the call has claimed.
    #[must_use]
    pub fn record(&self) -> RecordId {
        self.call.identity.id
    }

    /// Set if the handler runs although an equal call was made under another key.
    #[must_use]
    pub fn rotated_key(&self) -> Option<RotatedKey> {
        self.call.rotated
    }

    /// Tells the handler to stop: its time is over, or its call can no longer be committed. Take it
    /// before [`run`](Self::run).
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Whether a result of this kind commits the handler's writes, under the policy of the call.
    #[must_use]
    pub fn commits(&self, kind: ResultKind) -> bool {
        plan::commits(&self.call.policy, kind)
    }

    /// Runs the handler in this task, for at most as long as its policy and the store let it hold
    /// its transaction. If the transaction's session is seen to have ended, the handler is told to
    /// stop, and dropped after [`Policy::LONGEST_GRACE`](crate::Policy::LONGEST_GRACE).
    ///
    /// # Errors
    ///
    /// [`Interrupted`]. Finish the attempt with a result of kind
    /// [`ResultKind::Interrupted`](crate::ResultKind::Interrupted).
    pub async fn run<T>(&self, handler: impl Future<Output = T>) -> Result<T, Interrupted> {
        let call = &*self.call;
        let limit = TimeLimit::new(&call.policy, self.store.transaction_limit());
        let session_over = lock(&self.session_over).take();
        let over = async {
            let lost = async {
                call.guard_lost().await;
                self.stop.tell();
                std::future::pending().await
            };
            tokio::select! {
                why = limit.over(&self.stop, session_over) => why,
                why = lost => why,
            }
        };
        handler::run(call.identity.id, &call.observed, over, handler).await
    }

    /// Ends the transaction as the handler's result and the policy require, and returns the
    /// caller's answer. [`Answer::Executed`] means that the handler's own result is the answer.
    ///
    /// `transaction` is `None` if something that the handler started still holds it. Then nothing
    /// is committed or recorded, and the outcome is unknown.
    pub async fn finish<R: HandlerResult + ?Sized>(
        self,
        transaction: Option<S::Transaction>,
        result: &R,
    ) -> Answer {
        let Self {
            store, mut call, ..
        } = self;
        let mut observed = call.handled(result.kind());
        let span = observed.span();
        let answer = async {
            match transaction {
                Some(transaction) => end(&*store, *call, transaction, result, &mut observed).await,
                None => call.refuse(refusal::still_held(OnDoubt::Fail)),
            }
        };
        let answer = answer.instrument(span).await;
        observed.answered(&answer);
        answer
    }
}

async fn end<S: TransactionStore, R: HandlerResult + ?Sized>(
    store: &S,
    mut call: ClaimedCall,
    transaction: S::Transaction,
    result: &R,
    observed: &mut ObservedCall,
) -> Answer {
    let mut plan = plan::transaction(result.kind(), call.policy.on_error, call.identity.kind);
    let mut response = match plan {
        TransactionPlan::RollBack => None,
        TransactionPlan::Commit | TransactionPlan::RollBackAndRecord => match result.encode() {
            Ok(response) => Some(response),
            Err(error) => {
                // Dropping it rolls back.
                drop(transaction);
                return call.refuse(refusal::not_encoded(&*error));
            }
        },
    };
    // The record of an error without its text would say that the call took effect.
    if plan == TransactionPlan::RollBackAndRecord
        && response.as_ref().is_some_and(|error| !call.keeps(error))
    {
        plan = TransactionPlan::RollBack;
        response = None;
    }
    let mut under_guard = false;
    let end = match &response {
        None => End::RollBack,
        Some(response) => {
            let mut completion = call.completion(response);
            // The effect is undone, so equal calls may follow under any key.
            if plan == TransactionPlan::RollBackAndRecord
                && call
                    .guard
                    .as_ref()
                    .is_some_and(|guard| guard.is_of_equal_calls())
            {
                completion.guard = None;
            }
            under_guard = completion.guard.is_some();
            if plan == TransactionPlan::Commit {
                End::Commit(completion)
            } else {
                End::RollBackAndRecord(completion)
            }
        }
    };
    if let Some(guard) = &mut call.guard {
        guard.committing();
    }
    let ended = store.end(transaction, Some(&call.claim), end).await;
    let guard_end = GuardEnd::after(&ended, under_guard);
    call.end_guard(guard_end).await;
    answer(call, plan, ended, response, result, observed)
}

/// What the caller, and the calls that joined, are told about the end of the transaction.
fn answer<R: HandlerResult + ?Sized>(
    call: ClaimedCall,
    plan: TransactionPlan,
    ended: Ended,
    response: Option<Bytes>,
    result: &R,
    observed: &mut ObservedCall,
) -> Answer {
    match (ended, response) {
        (Ended::AsAsked(at), Some(response)) => {
            call.share(response, at);
            Answer::Executed
        }
        (Ended::AsAsked(_), None) => call.end_without_record(result),
        // The handler itself reported a failure, and its writes are gone. Its own result is the
        // answer.
        (Ended::Aborted(_), _) if plan != TransactionPlan::Commit => {
            call.fail();
            Answer::Executed
        }
        (Ended::Aborted(error), _) => call.refuse(refusal::not_committed(error)),
        (Ended::Lost(record), _) => call.lose_to(record),
        // Fenced: an operator has resolved the guard meanwhile, or a call with the same lock holds it.
        (Ended::LostInProgress | Ended::Fenced, _) => call.step_down(refusal::in_progress()),
        (Ended::EndedByHandler, _) => {
            observed.note(Outcome::LeftInDoubt);
            call.refuse(refusal::ended_by_handler(OnDoubt::Fail))
        }
        (Ended::Unknown(error), _) => call.refuse(refusal::commit_unknown(error)),
    }
}

impl<S: TransactionStore> std::fmt::Debug for TransactionAttempt<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionAttempt")
            .field("call", &self.call)
            .finish_non_exhaustive()
    }
}
