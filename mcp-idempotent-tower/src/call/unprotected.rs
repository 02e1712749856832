//! Calls that nothing protects: without a key where the tool asks for none, or while the store is
//! away and the policy says to run all the same. The engine does not see them.

use std::{
    any::Any,
    sync::{Arc, Mutex},
};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    BeginError, Borrowed, CallInfo, CommitOutcome, DetachOnDrop, DownstreamKey, HandlerResult,
    Lent, OnDoubt, OnError, Refusal, ResultKind, Store, StoreError, TransactionStore,
    engine::{LateTransaction, Left, after, bounded},
    fingerprint::DownstreamSeed,
    refusal,
    store::{Claimed, End, StoreErrorKind},
    telemetry::{ObservedCall, Outcome},
};
use tracing::Instrument as _;

use super::{
    Incoming,
    attempt::Attempt,
    run::{Reply, Rules, Unprotected, hand_back, interrupted},
};

/// Transaction mode: the handler's writes commit or are rolled back, and nothing is recorded.
pub(super) async fn in_transaction<S, C, R>(
    rules: Rules<S>,
    (info, observed): Unprotected,
    call: Box<C>,
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
    let lent = Lent::new(transaction);
    let handler = handler(*call, lent.clone());
    let running = rules.idempotency.one_more();
    let (must_write, on_error) = (rules.must_write, rules.policy.on_error);
    DetachOnDrop::new(async move {
        let _running = running;
        let timed = observed.handler();
        let span = observed.span();
        let ran = bounded(after(store.transaction_limit()), handler)
            .instrument(span.clone())
            .await;
        drop(timed);
        let (transaction, ran) = hand_back(&lent, ran, must_write);
        let kind = kind_of(&ran);
        let refusal = match transaction {
            None => Some(span.in_scope(|| refusal::still_held(OnDoubt::Fail))),
            Some(transaction) => {
                let commits = kind.is_success()
                    || kind == ResultKind::ErrorResult && on_error == OnError::Commit;
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
        reply(ran, refusal, Some(observed))
    })
    .await
}

/// Lease mode: as without us, a caller that leaves stops its handler.
pub(super) async fn under_lease<S, C, R>(
    rules: Rules<S>,
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
    let free = Arc::new(Free {
        seed: DownstreamSeed::unique(),
        store: Mutex::new(Box::new(Arc::clone(rules.idempotency.engine.store()))),
        call: info,
        transaction: LateTransaction::default(),
    });
    // A caller that leaves drops its handler here; what kept the attempt can begin nothing any more.
    let free = ClosedOnDrop(free);
    let handler = handler(*call, Attempt::free(Arc::clone(&free.0)));
    let span = observed
        .as_ref()
        .map_or_else(tracing::Span::none, ObservedCall::span);
    let timed = observed.as_ref().and_then(ObservedCall::handler);
    let ran = bounded(free.0.transaction.over_time(), handler)
        .instrument(span.clone())
        .await
        .map_err(|why| interrupted(why, CommitOutcome::Unknown));
    drop(timed);
    let refusal = free.0.end(kind_of(&ran)).instrument(span).await;
    reply(ran, refusal, observed)
}

fn kind_of<R: HandlerResult>(ran: &Result<R, Refusal>) -> ResultKind {
    ran.as_ref()
        .map_or(ResultKind::Interrupted, HandlerResult::kind)
}

fn reply<R>(
    ran: Result<R, Refusal>,
    refusal: Option<Refusal>,
    observed: Option<ObservedCall>,
) -> Reply<R> {
    if let Some(observed) = observed {
        match &refusal {
            Some(refusal) => observed.refused(refusal),
            None => observed.end(Outcome::Bypassed),
        }
    }
    match (refusal, ran) {
        (Some(refusal), _) | (None, Err(refusal)) => Reply::Refused(refusal),
        (None, Ok(result)) => Reply::Ran(result),
    }
}

/// What a handler is given in place of an attempt under a lease.
pub(super) struct Free {
    seed: DownstreamSeed,
    /// An `Arc` of the store.
    store: Mutex<Box<dyn Any + Send>>,
    call: CallInfo,
    transaction: LateTransaction,
}

struct ClosedOnDrop(Arc<Free>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        drop(self.0.transaction.close());
    }
}

impl Free {
    /// New each time: no other call has these keys.
    pub(super) fn downstream_key(&self, step: &str) -> DownstreamKey {
        self.seed.key(step)
    }

    pub(super) async fn begin<S: TransactionStore>(&self) -> Result<Borrowed<S>, BeginError> {
        let store = {
            let store = self.store.lock().map_err(|_| BeginError::Ended)?;
            store.downcast_ref::<Arc<S>>().cloned()
        };
        let store = store.ok_or(BeginError::AnotherStore)?;
        self.transaction.begin(&store, &self.call).await
    }

    /// The handler has returned: what was written commits with its success.
    async fn end(&self, kind: ResultKind) -> Option<Refusal> {
        match self.transaction.close() {
            Left::Nothing => None,
            Left::StillHeld => Some(refusal::still_held(OnDoubt::Fail)),
            Left::Transaction(transaction) => {
                let commits = kind.is_success();
                let end = if commits {
                    End::CommitUnrecorded
                } else {
                    End::RollBack
                };
                refusal::of_unrecorded(transaction.end(end).await, commits, true)
            }
        }
    }
}
