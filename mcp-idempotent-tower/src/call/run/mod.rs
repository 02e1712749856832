//! The two ways to run a call, one for each mode. Every door uses them: the attribute, the layer and the
//! relay. A call that nothing protects goes the same way, with an attempt of `unprotected` instead of the
//! engine's.

pub(crate) mod after_commit;
pub(crate) mod attempt;
pub(in crate::call) mod handler;
pub(in crate::call) mod protected;
pub(crate) mod reply;
pub(crate) mod rules;
pub(crate) mod tx;
pub(in crate::call) mod unprotected;
pub(crate) mod unused;
pub(crate) mod verify;

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};
use mcp_idempotent_core::{
    Answer, Begun, DetachOnDrop, HandlerResult, Lent, OnDoubt, Refusal, Store, TransactionStore,
    Verify,
    telemetry::{Mode, ObservedCall},
};

use self::{
    after_commit::AfterCommit,
    attempt::Attempt,
    handler::{hand_back, started, until_told},
    protected::{InTransaction, UnderLease},
    reply::{NoResult, Ran, Reply, Seen},
    rules::Rules,
    unprotected::{UnleasedAttempt, UnprotectedTransaction},
};
use super::{
    Incoming,
    identity::{AuthorizeCall, Identified, identify},
    refusal, seal,
};
use crate::Idempotency;

/// Runs a call whose effect commits together with its record. `handler` is not called for a replay or a
/// refusal.
pub(crate) async fn in_transaction<S, C, R>(
    rules: Rules<'_, S>,
    mut call: Box<C>,
    handler: impl FnOnce(C, Lent<S>) -> BoxFuture<'static, R> + Send,
) -> Reply<R>
where
    S: TransactionStore,
    C: Incoming,
    R: HandlerResult + Send + Sync + 'static,
{
    let authorize = AuthorizeCall::of(&rules, &*call);
    let begun = answering_panics(async {
        match identify(&rules, Mode::Transaction, &*call, authorize.as_ref()).await? {
            Identified::Protected(request) => {
                let begun = rules.idempotency.engine.begin_transaction(request).await;
                begun
                    .map(Identified::Protected)
                    .map_err(Reply::without_running)
            }
            Identified::Unprotected(unprotected) => Ok(Identified::Unprotected(unprotected)),
        }
    })
    .await;
    rules.take_argument(&mut *call);
    match begun {
        Err(reply) => {
            rules.tell_of_replay(&*call, &reply);
            reply
        }
        Ok(Identified::Protected((transaction, attempt))) => {
            call.claimed(attempt.record());
            run_in(rules, call, handler, transaction, attempt).await
        }
        Ok(Identified::Unprotected(unprotected)) => {
            match Box::pin(UnprotectedTransaction::begin(&rules, unprotected)).await {
                Ok((transaction, attempt)) => {
                    run_in(rules, call, handler, transaction, attempt).await
                }
                Err(refusal) => refusal.into(),
            }
        }
    }
}

/// Runs the handler in its transaction, then ends the transaction. It outlives its caller.
fn run_in<S, C, R>(
    rules: Rules<'_, S>,
    mut call: Box<C>,
    handler: impl FnOnce(C, Lent<S>) -> BoxFuture<'static, R> + Send,
    transaction: S::Transaction,
    mut attempt: impl InTransaction<S>,
) -> DetachOnDrop<Reply<R>>
where
    S: TransactionStore,
    C: Incoming,
    R: HandlerResult + Send + Sync + 'static,
{
    let after = AfterCommit::new();
    call.offer(after.clone());
    let store = Arc::clone(rules.idempotency.engine.store());
    let lent = Lent::new(store, transaction);
    let (stop, token) = (attempt.stop(), call.own_token());
    let handler = started(|| handler(*call, lent.clone()));
    let running = rules.idempotency.one_more();
    let must_write = rules.must_write;
    let unused = rules.unused.clone();
    DetachOnDrop::new(async move {
        let ran = match handler {
            Ok(handler) => attempt
                .run(until_told(
                    stop.told(),
                    token,
                    after.clone().during(seal::run(handler)),
                ))
                .await
                .map_err(NoResult::rolled_back),
            Err(not_started) => Err(not_started),
        };
        let (transaction, ran) = hand_back(&lent, ran, must_write, unused.as_deref());
        let commits = attempt.commits(Seen(&ran).kind());
        let rotated = attempt.rotated_key();
        let answer = attempt.finish(transaction, &Seen(&ran)).await;
        after.ended(commits && matches!(answer, Answer::Executed), running);
        Reply::of(answer, ran, rotated)
    })
}

/// Runs a call whose effect is outside the store. `handler` is not called for a replay or a refusal.
pub(crate) async fn under_lease<S, C, R>(
    rules: Rules<'_, S>,
    mut call: Box<C>,
    handler: impl FnOnce(C, Attempt) -> BoxFuture<'static, R> + Send,
) -> Reply<R>
where
    S: Store,
    C: Incoming,
    R: HandlerResult + Send + Sync + 'static,
{
    let authorize = AuthorizeCall::of(&rules, &*call);
    let verify = rules.verify(&*call);
    let begun = answering_panics(async {
        match identify(&rules, Mode::Lease, &*call, authorize.as_ref()).await? {
            Identified::Protected(request) => {
                let info = request.call().clone();
                let request = match &verify {
                    Some(verify) => request.with_verify(verify as &dyn Verify),
                    None => request,
                };
                match rules.idempotency.engine.begin_lease(request).await {
                    Begun::Attempt(attempt) => Ok(Identified::Protected(attempt)),
                    Begun::Answer(answer) => Err(Reply::without_running(answer)),
                    Begun::FailOpen => Ok(Identified::Unprotected((info, None))),
                }
            }
            Identified::Unprotected((info, observed)) => {
                Ok(Identified::Unprotected((info, Some(observed))))
            }
        }
    })
    .await;
    rules.take_argument(&mut *call);
    match begun {
        Err(reply) => {
            rules.tell_of_replay(&*call, &reply);
            reply
        }
        Ok(Identified::Protected(attempt)) => {
            call.claimed(attempt.record());
            let handler = started(|| handler(*call, Attempt::leased(attempt.handle())));
            let running = rules.idempotency.one_more();
            let on_doubt = rules.policy.on_doubt;
            DetachOnDrop::new(async move {
                let _running = running;
                run_under(attempt, handler, on_doubt).await
            })
            .await
        }
        Ok(Identified::Unprotected((info, observed))) => {
            let store = rules.idempotency.engine.store();
            let attempt = UnleasedAttempt::new(store, info, observed);
            let handler = started(|| handler(*call, Attempt::unleased(attempt.handle())));
            // Dropping the caller stops the handler, as in a plain rmcp server.
            Box::pin(run_under(attempt, handler, OnDoubt::Fail)).await
        }
    }
}

/// Runs the handler under its attempt, then ends the attempt.
async fn run_under<R>(
    mut attempt: impl UnderLease,
    handler: Ran<BoxFuture<'static, R>>,
    on_doubt: OnDoubt,
) -> Reply<R>
where
    R: HandlerResult + Send + Sync + 'static,
{
    let ran = match handler {
        Ok(handler) => attempt
            .run(seal::run(handler))
            .await
            .map_err(|why| NoResult::after_acting(why, on_doubt)),
        Err(not_started) => Err(not_started),
    };
    let rotated = attempt.rotated_key();
    let answer = attempt.finish(&Seen(&ran)).await;
    Reply::of(answer, ran, rotated)
}

/// Counts a call that is refused before its rules are known.
pub(crate) fn refused<S: Store>(idempotency: &Idempotency<S>, tool: &str, refusal: &Refusal) {
    let application = idempotency.engine.application();
    ObservedCall::start(application, &tool.into(), true, None, None).refused(refusal);
}

/// Catches a panic before the handler runs: the author's scope, authorization and set-up code runs there
/// too, and a panic would leave the client without an answer.
fn answering_panics<T, R>(
    before: impl Future<Output = Result<T, Reply<R>>>,
) -> impl Future<Output = Result<T, Reply<R>>> {
    // Not an `async fn`, which would store its argument twice.
    AssertUnwindSafe(before)
        .catch_unwind()
        .map(|before| before.unwrap_or_else(|_| Err(refusal::panicked_before().into())))
}
