//! Ends an attempt that was to be completed in a transaction of another driver. The handler's word is not
//! enough here: the store says whether that transaction committed.
//!
//! | The store says … | and the handler returned … | What follows |
//! | --- | --- | --- |
//! | completed by this attempt | the same result | it is the answer |
//! | completed by this attempt | anything else, or nothing | the recorded result is the answer |
//! | not completed | a result | the call is in doubt: the effect may have been committed without its record |
//! | not completed | an error | the policy decides, as without a completion |
//! | nothing: it cannot be reached | | the outcome is unknown |
//!
//! "Not completed" is final only after the attempt has ended its own lease. A commit that is still under way
//! holds the record, so ending the lease waits for it. If it comes through, the lease turns out to be
//! fenced, and the store is asked again.

use bytes::Bytes;

use super::end_on_drop::{EndOnDrop, Stage, tell_of_doubt, while_lease_lasts};
use crate::{
    answer::{Answer, answer_from, left_in_doubt},
    engine::{claimed_call::ClaimedCall, guard::GuardEnd, plan::LeasePlan},
    handler_result::{HandlerResult, ResultKind},
    record::{Record, RecordState},
    refusal,
    store::{Completed, LeaseEnd, Store, StoreError},
    telemetry::{ObservedCall, Outcome},
};

pub(super) async fn end<S: Store, R: HandlerResult + ?Sized>(
    mut owned: EndOnDrop<S>,
    mut call: ClaimedCall,
    plan: LeasePlan,
    result: &R,
    observed: &mut ObservedCall,
) -> Answer {
    let kind = result.kind();
    let own = match kind {
        ResultKind::Success
        | ResultKind::Task
        | ResultKind::ErrorResult
        | ResultKind::ProtocolError => Some(result.encode()),
        ResultKind::NotExecuted
        | ResultKind::NotCalled
        | ResultKind::InputRequired
        | ResultKind::Interrupted => None,
    };
    match completed(&owned).await {
        Ok(None) => {}
        Ok(Some(completed)) => {
            let own = own.and_then(Result::ok);
            return told(owned, call, kind, own, completed).await;
        }
        Err(error) => return call.refuse(refusal::commit_unknown(error)),
    }
    let acted = kind.may_have_acted();
    let (own, ended) = match (plan, own) {
        // Its effect may have been committed without the completion.
        _ if kind.is_success() => (None, owned.abandon().await),
        (LeasePlan::Record, Some(Ok(own))) if call.keeps(&own) => {
            let ended = owned.complete(&call, &own).await;
            (Some(own), ended)
        }
        (LeasePlan::Record, Some(Err(error))) => {
            observed.note(Outcome::LeftInDoubt);
            return call.refuse(refusal::not_encoded_after_acting(&*error, owned.on_doubt));
        }
        (LeasePlan::Release, _) => (None, owned.release(acted).await),
        (LeasePlan::Record | LeasePlan::InDoubt, _) => (None, owned.abandon().await),
    };
    let at = match ended {
        Ok(LeaseEnd::Done(at)) => at,
        Ok(LeaseEnd::Fenced) => {
            return match completed(&owned).await {
                Ok(Some(completed)) => told(owned, call, kind, own, completed).await,
                Ok(None) => {
                    observed.note(Outcome::Fenced);
                    call.refuse(refusal::fenced(owned.on_doubt))
                }
                Err(error) => call.refuse(refusal::commit_unknown(error)),
            };
        }
        // The commit may still be under way.
        Err(error) => return call.refuse(refusal::commit_unknown(error)),
    };
    match (plan, own) {
        _ if kind.is_success() => {
            tell_of_doubt(&owned, call, kind, observed).await;
            refusal::not_completed(owned.on_doubt).into()
        }
        (_, Some(own)) => {
            call.end_guard(GuardEnd::Completed).await;
            call.share(own, at);
            Answer::Executed
        }
        (LeasePlan::Release, None) => {
            call.end_guard(GuardEnd::Release { acted }).await;
            call.end_without_record(result)
        }
        (LeasePlan::Record | LeasePlan::InDoubt, None) => {
            tell_of_doubt(&owned, call, kind, observed).await;
            Answer::LeftInDoubt(left_in_doubt(owned.on_doubt))
        }
    }
}

/// What the store says of this attempt. It is asked again while the lease lasts.
async fn completed<S: Store>(owned: &EndOnDrop<S>) -> Result<Option<Completed>, StoreError> {
    let held = &owned.held;
    let Some(foreign) = held.store.foreign_transactions() else {
        return Ok(None);
    };
    while_lease_lasts(held, "a completion could not be looked for", || {
        foreign.completed(&held.lease)
    })
    .await
}

/// The transaction has committed. Its record decides what every caller is told.
async fn told<S: Store>(
    mut owned: EndOnDrop<S>,
    mut call: ClaimedCall,
    kind: ResultKind,
    own: Option<Bytes>,
    Completed { response, at }: Completed,
) -> Answer {
    owned.held.end();
    owned.stage = Stage::Ended;
    call.end_guard(GuardEnd::Completed).await;
    if let Some(own) = own {
        let is_same = match &response {
            Some(recorded) => own == *recorded,
            // The record does not say what it was.
            None => kind.is_success(),
        };
        if is_same {
            call.share(own, at);
            return Answer::Executed;
        }
    }
    if kind.is_success() {
        tracing::error!(
            tool = &*call.claim.call.tool,
            record = %call.identity.id,
            "a handler returned another result than the one that it committed; its caller gets the committed one"
        );
    } else {
        tracing::warn!(
            tool = &*call.claim.call.tool,
            record = %call.identity.id,
            ?kind,
            "a handler failed after its transaction had committed; its caller gets the committed result"
        );
    }
    let state = RecordState::Completed { response, at };
    let record = Record::new(call.identity.fingerprint, state.clone());
    let answer = answer_from(record, &call.identity, owned.on_doubt, false);
    call.share_state(state);
    answer
}
