//! The two runs of a call, one for each mode. Every door comes this way.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};
use mcp_idempotent_core::{
    Action, Answer, Authorize, Begun, Bytes, CallInfo, CanonicalArguments, CommitOutcome,
    DetachOnDrop, ErrorKind, HandlerResult, Interrupted, KeyRequirement, Lent, Policy, Refusal,
    Replay, Request, ResultKind, Store, TransactionStore, Verify,
    engine::Closed,
    telemetry::{Mode, ObservedCall},
};

use super::{
    Incoming,
    attempt::Attempt,
    doubt::{VerifyCall, VerifyFn},
    key::Places,
    scope::{AuthorizeHook, NoScope},
    unprotected,
};
use crate::{Idempotency, wire};

/// Whose rules are in force for a call.
pub(crate) struct Rules<S> {
    pub(crate) idempotency: Idempotency<S>,
    pub(crate) policy: Arc<Policy>,
    /// Lease mode: the author's function for calls in doubt.
    pub(crate) verify: Option<VerifyFn>,
    /// The key argument, where it is not one of the tool's own.
    pub(crate) added_argument: Option<Arc<str>>,
    /// Transaction mode: a success without having borrowed the transaction is an error.
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
        Self::of(answer, Err(unreadable()))
    }
}

impl<R> From<Refusal> for Reply<R> {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Runs a call whose effect commits together with its record. The call is in a box, because the
/// futures below each have a place for it. `handler` is called only if it is to
/// run.
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

/// Runs a call whose effect is outside the store. `handler` is called only if it is to run.
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
    drop(verify);
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
        let ran = ran.map_err(|why| interrupted(why, CommitOutcome::Unknown));
        let answer = attempt.finish(&Seen(&ran)).await;
        Reply::of(answer, ran)
    })
    .await
}

/// A call that is refused before its rules are known.
pub(crate) fn refused<S: Store>(idempotency: &Idempotency<S>, tool: &str, refusal: &Refusal) {
    let application = idempotency.engine.application();
    ObservedCall::start(application, &tool.into(), true, None, None).refused(refusal);
}

/// The handler has returned, or was interrupted: takes its transaction back, where it can be had.
pub(super) fn hand_back<S: TransactionStore, R: HandlerResult>(
    lent: &Lent<S>,
    ran: Result<R, Interrupted>,
    must_write: bool,
) -> (Option<S::Transaction>, Result<R, Refusal>) {
    let ran = ran.map_err(|why| interrupted(why, CommitOutcome::NotCommitted));
    match lent.close() {
        Closed::StillHeld => (None, ran),
        Closed::Returned(transaction) => (Some(transaction), ran),
        Closed::Untouched(transaction) => {
            let ran = ran.and_then(|result| {
                if must_write && result.kind().is_success() {
                    Err(not_borrowed())
                } else {
                    Ok(result)
                }
            });
            (Some(transaction), ran)
        }
    }
}

/// What the engine is told of how the handler ended: one that was interrupted is rolled back or in
/// doubt, and never recorded.
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

/// What comes before the handler runs code of the author's too: scope, authorization, set-up. A
/// panic there would leave the client without an answer.
fn guarded<T, R>(
    before: impl Future<Output = Result<T, Reply<R>>>,
) -> impl Future<Output = Result<T, Reply<R>>> {
    // Not an `async fn`: it would keep a second place for what it is given.
    AssertUnwindSafe(before)
        .catch_unwind()
        .map(|before| before.unwrap_or_else(|_| Err(panicked_before().into())))
}

/// A call that nothing protects, and what is seen of it.
pub(super) type Unprotected = (CallInfo, ObservedCall);

enum Identified<'a> {
    Protected(Request<'a>),
    Unprotected(Unprotected),
}

/// Which call this is, and whether its caller may make it.
async fn identify<'a, S: Store, C: Incoming>(
    rules: &'a Rules<S>,
    mode: Mode,
    call: &C,
    authorize: Option<&'a AuthorizeCall<'a, C>>,
) -> Result<Identified<'a>, Refusal> {
    let engine = &rules.idempotency.engine;
    let tool: Arc<str> = Arc::from(call.tool());
    let observe =
        |mode| ObservedCall::start(engine.application(), &tool, rules.is_listed, None, mode);
    let request = match identity(rules, call, &tool) {
        Ok(Ok(request)) => request,
        Ok(Err(info)) => {
            let observed = observe(Some(mode));
            if let Some(authorize) = authorize
                && let Err(refusal) = authorize.authorize(&info).await
            {
                observed.refused(&refusal);
                return Err(refusal);
            }
            return Ok(Identified::Unprotected((info, observed)));
        }
        Err(refusal) => {
            observe(None).refused(&refusal);
            return Err(refusal);
        }
    };
    let request = match authorize {
        Some(authorize) => request.with_authorize(authorize),
        None => request,
    };
    // The policy was checked when the layer was built, or the tool was first seen.
    let request = request.with_checked_policy();
    Ok(Identified::Protected(if rules.is_listed {
        request
    } else {
        request.with_unlisted_tool()
    }))
}

/// The call with its identity, or what is known of one that has none.
fn identity<'a, S: Store, C: Incoming>(
    rules: &'a Rules<S>,
    call: &C,
    tool: &Arc<str>,
) -> Result<Result<Request<'a>, CallInfo>, Refusal> {
    let Rules {
        idempotency,
        policy,
        ..
    } = rules;
    let scope = match call.scope(idempotency.scope()) {
        // With a key or without, whatever becomes of the call.
        Err(NoScope::Denied(denied)) => return Err(denied.into()),
        scope => scope,
    };
    let places = Places {
        meta: Some(call.meta()),
        arguments: call.arguments(),
        argument: policy.key_argument.as_deref(),
    };
    let key = places.key()?;
    match (&key, policy.key) {
        (None, KeyRequirement::Required) => return Err(key_required(policy)),
        (None, KeyRequirement::Explicit) => {
            return Ok(Err(CallInfo::new(Arc::clone(tool), scope.ok())));
        }
        _ => {}
    }
    let scope = scope?;
    let arguments = CanonicalArguments::new(call.arguments(), &left_out(policy));
    let engine = &idempotency.engine;
    let identity = engine.identify(&scope, key.as_ref(), tool, &arguments);
    let info = CallInfo::new(Arc::clone(tool), scope);
    Ok(Ok(
        Request::new(info, identity, policy).with_round(call.round())
    ))
}

/// The arguments that take no part in identity.
pub(crate) fn left_out(policy: &Policy) -> Vec<Arc<str>> {
    let ignored = policy.ignored.iter().chain(&policy.key_argument);
    ignored.cloned().collect()
}

impl<S> Rules<S> {
    fn take_argument<C: Incoming>(&self, call: &mut C) {
        if let Some(name) = &self.added_argument {
            call.remove_argument(name);
        }
    }
}

/// The author's hook, with the call that it looks at.
struct AuthorizeCall<'a, C> {
    hook: &'a AuthorizeHook,
    call: &'a C,
}

impl<'a, C: Incoming> AuthorizeCall<'a, C> {
    fn of<S>(rules: &'a Rules<S>, call: &'a C) -> Option<Self> {
        let hook = rules.idempotency.settings().authorize.as_ref()?;
        Some(Self { hook, call })
    }
}

impl<C: Incoming> Authorize for AuthorizeCall<'_, C> {
    fn authorize<'a>(&'a self, call: &'a CallInfo) -> BoxFuture<'a, Result<(), Refusal>> {
        let asked = self.call.authorize(self.hook, &call.tool);
        Box::pin(asked.map(|allowed| allowed.map_err(Refusal::from)))
    }
}

pub(super) fn interrupted(why: Interrupted, outcome: CommitOutcome) -> Refusal {
    let (kind, action, message) = match (why, outcome) {
        (Interrupted::OverTime, CommitOutcome::Unknown) => (
            ErrorKind::TransactionTooLong,
            Action::AskOperator,
            "The tool held its database transaction for longer than the server allows and was \
             stopped. What it wrote is rolled back; what it did elsewhere may have taken \
             effect. Ask the operator to look before repeating it.",
        ),
        (Interrupted::OverTime, _) => (
            ErrorKind::TransactionTooLong,
            Action::AskOperator,
            "The tool held its database transaction for longer than the server allows and was \
             stopped; nothing was committed.",
        ),
        (_, CommitOutcome::NotCommitted) => (
            ErrorKind::HandlerPanicked,
            Action::RetrySameKey,
            "The tool failed unexpectedly; nothing was committed. It may be sent again with \
             the same key.",
        ),
        (_, CommitOutcome::Committed | CommitOutcome::Unknown) => (
            ErrorKind::HandlerPanicked,
            Action::AskOperator,
            "The tool failed unexpectedly, so it is not known whether it took effect. Ask the \
             operator to look before repeating it.",
        ),
    };
    Refusal::new(kind, outcome, action, message)
}

/// A success without the transaction: what the tool did elsewhere cannot be part of the record.
fn not_borrowed() -> Refusal {
    let message = "This tool is declared to write through the call's transaction, but it returned \
                   without having taken it. What it did elsewhere is not undone, so it is not known \
                   whether it took effect. Its author must take `Tx` in the handler, or declare the \
                   tool with `Rule::lease`.";
    tracing::error!(
        message,
        "a tool in transaction mode did not take its transaction"
    );
    Refusal::new(
        ErrorKind::Misconfigured,
        CommitOutcome::Unknown,
        Action::AskOperator,
        message,
    )
}

fn key_required(policy: &Policy) -> Refusal {
    // A model can fill an argument, and hosts do not let it set `_meta`: the argument comes first.
    let place = match policy.key_argument.as_deref() {
        Some(pointer) => {
            let name = pointer.strip_prefix('/').filter(|name| !name.contains('/'));
            format!(
                "in the argument `{}`, or in `_meta[\"{}\"]`",
                name.unwrap_or(pointer),
                wire::KEY
            )
        }
        None => format!("in `_meta[\"{}\"]`", wire::KEY),
    };
    Refusal::new(
        ErrorKind::KeyRequired,
        CommitOutcome::NotCommitted,
        Action::UseNewKey,
        format!(
            "This tool takes calls with an idempotency key only, so the call was not executed. \
             Make a new unique key for this intent, send it {place}, and send the same key again \
             on every retry."
        ),
    )
}

/// The call was executed by somebody, and its result cannot be given.
pub(crate) fn unreadable() -> Refusal {
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Committed,
        Action::AskOperator,
        "The call with this idempotency key was executed, but its stored result cannot be read. It \
         was not executed again.",
    )
}

fn panicked_before() -> Refusal {
    Refusal::new(
        ErrorKind::HandlerPanicked,
        CommitOutcome::NotCommitted,
        Action::RetrySameKey,
        "The server failed unexpectedly before the tool ran, so the call was not executed. It may \
         be sent again with the same key.",
    )
}
