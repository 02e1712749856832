//! An attempt in lease mode: runs the handler, and ends the lease as its result requires.

use std::future::Future;

use bytes::Bytes;
use tracing::Instrument as _;

use super::{
    elsewhere,
    end_on_drop::{EndOnDrop, Stage, tell_of_doubt},
    handle::LeaseHandle,
};
use crate::{
    answer::{Answer, RotatedKey, left_in_doubt},
    engine::{
        claimed_call::ClaimedCall,
        guard::GuardEnd,
        handler::{self, Interrupted},
        late_transaction::{Ending, Left},
        plan::{self, LeasePlan},
    },
    fingerprint::RecordId,
    handler_result::{HandlerResult, ResultKind},
    refusal,
    store::{End, Ended, LeaseEnd, Store},
    telemetry::{ObservedCall, Outcome},
};

/// One attempt in lease mode. If it is dropped after the handler has started, the record is in
/// doubt.
pub struct LeaseAttempt<S: Store> {
    owned: EndOnDrop<S>,
    call: Box<ClaimedCall>,
}

impl<S: Store> LeaseAttempt<S> {
    pub(super) const fn new(owned: EndOnDrop<S>, call: Box<ClaimedCall>) -> Self {
        Self { owned, call }
    }

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

    /// A handle with which the handler can inspect its lease, and act under it.
    #[must_use]
    pub fn handle(&self) -> LeaseHandle {
        self.owned.handle().recording(&self.call)
    }

    /// Runs the handler in this task. A handler that holds a [transaction](LeaseHandle::begin) for
    /// longer than the store allows, or after its session has ended, is dropped. If a handler
    /// continues after its lease is lost, other calls stop waiting for it.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]. Finish the attempt with a result of kind
    /// [`ResultKind::Interrupted`](crate::ResultKind::Interrupted).
    pub async fn run<T>(&mut self, handler: impl Future<Output = T>) -> Result<T, Interrupted> {
        self.owned.stage = Stage::Started;
        if let Some(guard) = &mut self.call.guard {
            guard.started();
        }
        let (held, call) = (&self.owned.held, &self.call);
        let over = held.transaction().over();
        let handler = handler::run(call.identity.id, &call.observed, over, handler);
        let lost = async {
            held.lost().await;
            call.resign();
            std::future::pending().await
        };
        tokio::select! {
            biased;
            ended = handler => ended,
            () = lost => unreachable!("it waits for ever"),
        }
    }

    /// Ends the attempt as the handler's result and the policy require, and returns the caller's
    /// answer. After [`Answer::Executed`], [`Answer::Unrecorded`] and [`Answer::LeftInDoubt`] it is the
    /// handler's own result.
    pub async fn finish<R: HandlerResult + ?Sized>(self, result: &R) -> Answer {
        let Self { owned, mut call } = self;
        let mut observed = call.handled(result.kind());
        if owned.in_doubt {
            observed.ran_again();
        }
        let span = observed.span();
        let answer = end(owned, *call, result, &mut observed)
            .instrument(span)
            .await;
        observed.answered(&answer);
        answer
    }
}

async fn end<S: Store, R: HandlerResult + ?Sized>(
    mut owned: EndOnDrop<S>,
    mut call: ClaimedCall,
    result: &R,
    observed: &mut ObservedCall,
) -> Answer {
    let kind = result.kind();
    owned.held.returned();
    let (policy, key) = (&call.policy, call.identity.kind);
    let plan = match plan::lease(kind, policy, result.on_error_result(), key) {
        // This attempt may have done nothing, but an earlier one may have acted.
        LeasePlan::Release if owned.in_doubt => LeasePlan::InDoubt,
        plan => plan,
    };
    let transaction = match owned.held.transaction().close() {
        Left::Nothing => None,
        Left::Elsewhere => {
            // Boxed, because few tools do this.
            return Box::pin(elsewhere::end(owned, call, plan, result, observed)).await;
        }
        Left::Transaction(transaction) => Some(transaction),
        Left::StillHeld => {
            observed.note(Outcome::LeftInDoubt);
            let refusal = refusal::still_held(owned.on_doubt);
            // If an open transaction blocks all other writes, the one that is still held blocks
            // this write too. The caller need not wait for it.
            if owned.held.store.transaction_limit().is_some() {
                drop(owned);
            } else {
                let _ = owned.abandon().await;
            }
            return call.refuse(refusal);
        }
    };
    // Only a success commits the handler's writes. An error is recorded without them.
    let transaction = match transaction {
        Some(transaction) if !kind.is_success() => {
            // The handler committed something itself, which cannot be rolled back. Whatever its
            // result says, the key is not free.
            if let Ended::EndedByHandler = transaction.end(End::RollBack).await {
                observed.note(Outcome::LeftInDoubt);
                let _ = owned.abandon().await;
                return call.refuse(refusal::ended_by_handler(owned.on_doubt));
            }
            None
        }
        kept => kept,
    };
    match plan {
        LeasePlan::Record => match result.encode() {
            Ok(response) if !kind.is_success() && !call.keeps(&response) => {
                leave_in_doubt(owned, call, kind, observed).await
            }
            Ok(response) => match transaction {
                Some(transaction) => {
                    complete_with(owned, transaction, call, response, observed).await
                }
                None => complete(owned, call, response, observed).await,
            },
            Err(error) => {
                // The handler has acted. Dropping the lease leaves the record in doubt.
                observed.note(Outcome::LeftInDoubt);
                call.refuse(refusal::not_encoded_after_acting(&*error, owned.on_doubt))
            }
        },
        LeasePlan::Release => {
            let acted = kind.may_have_acted();
            let _ = owned.release(acted).await;
            call.end_guard(GuardEnd::Release { acted }).await;
            call.end_without_record(result)
        }
        LeasePlan::InDoubt => leave_in_doubt(owned, call, kind, observed).await,
    }
}

async fn leave_in_doubt<S: Store>(
    mut owned: EndOnDrop<S>,
    call: ClaimedCall,
    kind: ResultKind,
    observed: &mut ObservedCall,
) -> Answer {
    let _ = owned.abandon().await;
    tell_of_doubt(&owned, call, kind, observed).await;
    Answer::LeftInDoubt(left_in_doubt(owned.on_doubt))
}

async fn complete<S: Store>(
    mut owned: EndOnDrop<S>,
    mut call: ClaimedCall,
    response: Bytes,
    observed: &mut ObservedCall,
) -> Answer {
    match owned.complete(&call, &response).await {
        Ok(LeaseEnd::Done(at)) => {
            call.end_guard(GuardEnd::Completed).await;
            call.share(response, at);
            Answer::Executed
        }
        Ok(LeaseEnd::Fenced) => {
            observed.note(Outcome::Fenced);
            call.refuse(refusal::fenced(owned.on_doubt))
        }
        Err(error) => {
            // The effect has happened and its result is known, so this one caller gets it. A retry
            // finds the record in doubt.
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "a result could not be recorded; its call will be in doubt when the lease ends"
            );
            observed.note(Outcome::LeftInDoubt);
            call.fail();
            Answer::Unrecorded
        }
    }
}

/// The handler has acted outside the store, and its writes commit together with the record. If they
/// do not commit, the outside call may still have happened.
async fn complete_with<S: Store>(
    mut owned: EndOnDrop<S>,
    transaction: Box<dyn Ending>,
    mut call: ClaimedCall,
    response: Bytes,
    observed: &mut ObservedCall,
) -> Answer {
    let lease = owned.held.lease.clone();
    let end = End::Complete(lease, call.completion(&response));
    match transaction.end(end).await {
        Ended::AsAsked(at) => {
            owned.stage = Stage::Ended;
            call.end_guard(GuardEnd::Completed).await;
            call.share(response, at);
            Answer::Executed
        }
        // Either lease may be lost. What is left of them is abandoned when they are dropped.
        Ended::Fenced | Ended::Lost(_) | Ended::LostInProgress => {
            observed.note(Outcome::Fenced);
            call.refuse(refusal::fenced(owned.on_doubt))
        }
        Ended::Aborted(error) => {
            observed.note(Outcome::LeftInDoubt);
            let _ = owned.abandon().await;
            call.refuse(refusal::not_committed_after_acting(error, owned.on_doubt))
        }
        Ended::EndedByHandler => {
            observed.note(Outcome::LeftInDoubt);
            let _ = owned.abandon().await;
            call.refuse(refusal::ended_by_handler(owned.on_doubt))
        }
        // The commit may still be under way. Either it completes the lease, or the lease lapses
        // into doubt.
        Ended::Unknown(error) => {
            owned.stage = Stage::Ended;
            call.refuse(refusal::commit_unknown(error))
        }
    }
}

impl<S: Store> std::fmt::Debug for LeaseAttempt<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseAttempt")
            .field("call", &self.call)
            .finish_non_exhaustive()
    }
}
