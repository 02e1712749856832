//! The two ways to run a call, one for each mode. The attribute and the layer both use them.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};
use mcp_idempotent_core::{
    Answer, Begun, Bytes, CommitOutcome, DetachOnDrop, HandlerResult, Interrupted, Lent, Policy,
    Refusal, Replay, ResultKind, Store, TransactionStore, Verify,
    engine::Closed,
    telemetry::{Mode, ObservedCall},
};

use super::{
    Incoming,
    attempt::Attempt,
    doubt::{VerifyCall, VerifyFn},
    identity::{AuthorizeCall, Identified, identify},
    refusal, unprotected,
};
use crate::Idempotency;

/// The rules for a call.
pub(crate) struct Rules<S> {
    pub(crate) idempotency: Idempotency<S>,
    pub(crate) policy: Arc<Policy>,
    /// Lease mode: the author's function for calls in doubt.
    pub(crate) verify: Option<VerifyFn>,
    /// The name of the key argument, if it was added to the tool's schema.
    pub(crate) added_argument: Option<Arc<str>>,
    /// Transaction mode: a handler that succeeds without taking the transaction is an error.
    pub(crate) must_write: bool,
    /// Whether the server lists the tool.
    pub(crate) is_listed: bool,
}

/// What a caller gets.
pub(crate) enum Reply<R> {
    /// The result of the handler, which ran for this caller.
    Ran(R),
    /// The result of an earlier or a concurrent call.
    Replayed(Replay),
    Refused(Refusal),
}

impl<R> Reply<R> {
    fn of(answer: Answer, ran: Result<R, Refusal>) -> Self {
        match (answer, ran) {
            (Answer::Executed, Ok(result)) => Self::Ran(result),
            (Answer::Executed, Err(refusal)) | (Answer::Refused(refusal), _) => {
                Self::Refused(refusal)
            }
            (Answer::Replayed(replay), _) => Self::Replayed(replay),
        }
    }

    fn without_running(answer: Answer) -> Self {
        Self::of(answer, Err(refusal::unreadable()))
    }
}

impl<R> From<Refusal> for Reply<R> {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Runs a call whose effect commits together with its record. `handler` is not called for a replay or a
/// refusal.
pub(crate) async fn in_transaction<S, C, R>(
    rules: Rules<S>,
    mut call: Box<C>,
    handler: impl FnOnce(C, Lent<S>) -> BoxFuture<'static, R> + Send,
) -> Reply<R>
where
    S: TransactionStore,
    C: Incoming,
    R: HandlerResult + Send + Sync + 'static,
{
    let authorize = AuthorizeCall::of(&rules, &*call);
    let begun = guarded(async {
        match identify(&rules, Mode::Transaction, &*call, authorize.as_ref()).await? {
            Identified::Protected(request) => {
                let begun = rules.idempotency.engine.begin_transaction(request).await;
                begun.map(Ok).map_err(Reply::without_running)
            }
            Identified::Unprotected(unprotected) => Ok(Err(unprotected)),
        }
    })
    .await;
    rules.take_argument(&mut *call);
    let (transaction, attempt) = match begun {
        Err(reply) => return reply,
        Ok(Err(observed)) => {
            return Box::pin(unprotected::in_transaction(rules, observed, call, handler)).await;
        }
        Ok(Ok(begun)) => begun,
    };
    let lent = Lent::new(transaction);
    let handler = handler(*call, lent.clone());
    let running = rules.idempotency.one_more();
    let must_write = rules.must_write;
    DetachOnDrop::new(async move {
        let _running = running;
        let ran = attempt.run(handler).await;
        let (transaction, ran) = hand_back(&lent, ran, must_write);
        let answer = attempt.finish(transaction, &Seen(&ran)).await;
        Reply::of(answer, ran)
    })
    .await
}

/// Runs a call whose effect is outside the store. `handler` is not called for a replay or a refusal.
pub(crate) async fn under_lease<S, C, R>(
    rules: Rules<S>,
    mut call: Box<C>,
    handler: impl FnOnce(C, Attempt) -> BoxFuture<'static, R> + Send,
) -> Reply<R>
where
    S: Store,
    C: Incoming,
    R: HandlerResult + Send + Sync + 'static,
{
    let authorize = AuthorizeCall::of(&rules, &*call);
    let verify = VerifyCall::of(&rules, &*call);
    let begun = guarded(async {
        match identify(&rules, Mode::Lease, &*call, authorize.as_ref()).await? {
            Identified::Protected(request) => {
                let info = request.call().clone();
                let request = match &verify {
                    Some(verify) => request.with_verify(verify as &dyn Verify),
                    None => request,
                };
                match rules.idempotency.engine.begin(request).await {
                    Begun::Attempt(attempt) => Ok(Ok(attempt)),
                    Begun::Answer(answer) => Err(Reply::without_running(answer)),
                    Begun::FailOpen => Ok(Err((info, None))),
                }
            }
            Identified::Unprotected((info, observed)) => Ok(Err((info, Some(observed)))),
        }
    })
    .await;
    rules.take_argument(&mut *call);
    let mut attempt = match begun {
        Err(reply) => return reply,
        Ok(Err((info, observed))) => {
            return Box::pin(unprotected::under_lease(
                rules, info, observed, call, handler,
            ))
            .await;
        }
        Ok(Ok(attempt)) => attempt,
    };
    let handler = handler(*call, Attempt::leased(attempt.handle()));
    let running = rules.idempotency.one_more();
    DetachOnDrop::new(async move {
        let _running = running;
        let ran = attempt.run(handler).await;
        let ran = ran.map_err(|why| refusal::interrupted(why, CommitOutcome::Unknown));
        let answer = attempt.finish(&Seen(&ran)).await;
        Reply::of(answer, ran)
    })
    .await
}

/// Counts a call that is refused before its rules are known.
pub(crate) fn refused<S: Store>(idempotency: &Idempotency<S>, tool: &str, refusal: &Refusal) {
    let application = idempotency.engine.application();
    ObservedCall::start(application, &tool.into(), true, None, None).refused(refusal);
}

/// Takes the transaction back after the handler has returned or was interrupted; `None` if something
/// still holds it.
pub(super) fn hand_back<S: TransactionStore, R: HandlerResult>(
    lent: &Lent<S>,
    ran: Result<R, Interrupted>,
    must_write: bool,
) -> (Option<S::Transaction>, Result<R, Refusal>) {
    let ran = ran.map_err(|why| refusal::interrupted(why, CommitOutcome::NotCommitted));
    match lent.close() {
        Closed::StillHeld => (None, ran),
        Closed::Returned(transaction) => (Some(transaction), ran),
        Closed::Untouched(transaction) => {
            let ran = ran.and_then(|result| {
                if must_write && result.kind().is_success() {
                    Err(refusal::not_borrowed())
                } else {
                    Ok(result)
                }
            });
            (Some(transaction), ran)
        }
    }
}

/// How the handler ended, for the engine. A call that was interrupted is rolled back or in doubt, and is
/// never recorded.
struct Seen<'a, R>(&'a Result<R, Refusal>);

impl<R: HandlerResult> HandlerResult for Seen<'_, R> {
    fn kind(&self) -> ResultKind {
        self.0
            .as_ref()
            .map_or(ResultKind::Interrupted, HandlerResult::kind)
    }

    fn encode(&self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        match self.0 {
            Ok(result) => result.encode(),
            Err(_) => Err("the handler has no result".into()),
        }
    }
}

/// Catches a panic before the handler runs: the author's scope, authorization and set-up code runs there
/// too, and a panic would leave the client without an answer.
fn guarded<T, R>(
    before: impl Future<Output = Result<T, Reply<R>>>,
) -> impl Future<Output = Result<T, Reply<R>>> {
    // Not an `async fn`: it would keep a second place for what it is given.
    AssertUnwindSafe(before)
        .catch_unwind()
        .map(|before| before.unwrap_or_else(|_| Err(refusal::panicked_before().into())))
}

impl<S> Rules<S> {
    fn take_argument<C: Incoming>(&self, call: &mut C) {
        if let Some(name) = &self.added_argument {
            call.remove_argument(name);
        }
    }
}
