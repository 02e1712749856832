//! Unprotected calls: calls without a key where the tool does not need one, and calls that run while the
//! store is unavailable because the policy allows it. They do not go through the engine.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    CallInfo, DetachOnDrop, HandlerResult, Lent, OnDoubt, OnError, Refusal, ResultKind, Store,
    StoreError, TransactionStore,
    engine::{Stop, TimeLimit, bounded},
    refusal,
    store::{Claimed, End, StoreErrorKind},
    telemetry::{ObservedCall, Outcome},
};
use tracing::Instrument as _;

use super::{
    Incoming,
    after_commit::AfterCommit,
    attempt::Attempt,
    identity::Unprotected,
    reply::Reply,
    returned::{NoResult, Ran, Seen, hand_back, started},
    rules::Rules,
    seal,
    told::until_told,
    unleased::{ClosedOnDrop, Unleased},
};

/// Transaction mode: the handler's writes are committed or rolled back, and nothing is recorded.
pub(super) async fn in_transaction<S, C, R>(
    rules: Rules<'_, S>,
    (info, observed): Unprotected,
    mut call: Box<C>,
    handler: impl FnOnce(C, Lent<S>) -> BoxFuture<'static, R> + Send,
) -> Reply<R>
where
    S: TransactionStore,
    C: Incoming,
    R: HandlerResult + Send + Sync + 'static,
{
    let store = Arc::clone(rules.idempotency.engine.store());
    let span = observed.span();
    let transaction = match store.begin(&info, None).instrument(span.clone()).await {
        Ok(Claimed::New(transaction)) => transaction,
        other => {
            let error = other.err().unwrap_or_else(|| {
                StoreError::new(
                    StoreErrorKind::Other,
                    "the store answered a call without a claim with a record",
                )
            });
            let refusal = span.in_scope(|| refusal::store_unavailable(error));
            observed.refused(&refusal);
            return refusal.into();
        }
    };
    let after = AfterCommit::new();
    call.offer(after.clone());
    let session_over = store.session_over(&transaction);
    let lent = Lent::new(Arc::clone(&store), transaction);
    let (stop, token) = (Stop::default(), call.own_token());
    let handler = started(|| handler(*call, lent.clone()));
    let limit = TimeLimit::new(&rules.policy, store.transaction_limit());
    let running = rules.idempotency.one_more();
    let (must_write, on_error) = (rules.must_write, rules.policy.on_error);
    DetachOnDrop::new(async move {
        let timed = observed.handler();
        let span = observed.span();
        let ran = match handler {
            Ok(handler) => {
                let handler = after.clone().during(seal::run(handler));
                let handler = until_told(stop.clone(), token, handler);
                bounded(limit.over(&stop, session_over), handler)
                    .instrument(span.clone())
                    .await
                    .map_err(NoResult::rolled_back)
            }
            Err(not_started) => Err(not_started),
        };
        drop(timed);
        let (transaction, ran) = hand_back(&lent, ran, must_write);
        let kind = Seen(&ran).kind();
        let commits =
            kind.is_success() || kind == ResultKind::ErrorResult && on_error == OnError::Commit;
        let refusal = match transaction {
            None => Some(span.in_scope(|| refusal::still_held(OnDoubt::Fail))),
            Some(transaction) => {
                let end = if commits {
                    End::CommitUnrecorded
                } else {
                    End::RollBack
                };
                let ended = store.end(transaction, None, end).instrument(span.clone());
                let ended = ended.await;
                span.in_scope(|| refusal::of_unrecorded(ended, commits, false))
            }
        };
        after.ended(commits && refusal.is_none(), running);
        reply(ran, refusal, Some(observed))
    })
    .await
}

/// Lease mode: dropping the caller stops the handler, as in a plain rmcp server.
pub(super) async fn under_lease<S, C, R>(
    rules: Rules<'_, S>,
    info: CallInfo,
    observed: Option<ObservedCall>,
    call: Box<C>,
    handler: impl FnOnce(C, Attempt) -> BoxFuture<'static, R> + Send,
) -> Reply<R>
where
    S: Store,
    C: Incoming,
    R: HandlerResult + Send + Sync + 'static,
{
    // When the caller is dropped, so is the handler. A clone of the attempt that outlives it must not
    // begin a transaction.
    let unleased = ClosedOnDrop(Unleased::new(rules.idempotency.engine.store(), info));
    let handler = started(|| handler(*call, Attempt::unleased(Arc::clone(&unleased.0))));
    let span = observed
        .as_ref()
        .map_or_else(tracing::Span::none, ObservedCall::span);
    let timed = observed.as_ref().and_then(ObservedCall::handler);
    let ran = match handler {
        Ok(handler) => bounded(unleased.0.over(), seal::run(handler))
            .instrument(span.clone())
            .await
            .map_err(|why| NoResult::after_acting(why, OnDoubt::Fail)),
        Err(not_started) => Err(not_started),
    };
    drop(timed);
    let refusal = unleased.0.end(Seen(&ran).kind()).instrument(span).await;
    reply(ran, refusal, observed)
}

fn reply<R>(ran: Ran<R>, refusal: Option<Refusal>, observed: Option<ObservedCall>) -> Reply<R> {
    if let Some(observed) = observed {
        match &refusal {
            Some(refusal) => observed.refused(refusal),
            None => observed.end(Outcome::Bypassed),
        }
    }
    match (refusal, ran) {
        (Some(refusal), _) | (None, Err(NoResult { refusal, .. })) => Reply::Refused(refusal),
        (None, Ok(result)) => Reply::Ran(result),
    }
}
