//! One annotated call, from its key to its answer.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};
use mcp_idempotent_core::{
    Action, Answer, Begun, CallInfo, CanonicalArguments, CommitOutcome, DetachOnDrop, ErrorKind,
    Interrupted, KeyKind, KeyRequirement, LeaseAttempt, Policy, Refusal, Request, Scope, Store,
    TransactionStore, Verify, telemetry::UNLISTED_TOOL,
};
use rmcp::{
    ErrorData, RoleServer, handler::server::tool::IntoCallToolResult, model::CallToolResponse,
    service::RequestContext,
};
use tokio_util::sync::CancellationToken;

use crate::{
    attempt::Attempt,
    call::{Call, NotCalled},
    idempotency::{AnnotatedTool, Idempotency},
    options::ToolOptions,
    result::{self, Handled, ToolResult},
    verify::{InDoubt, VerifyCall, Verifying},
    wire,
};

/// How the author's function ended.
#[derive(Debug)]
#[doc(hidden)]
pub struct Outcome(pub(crate) Handled);

impl Outcome {
    /// The author's function returned.
    ///
    /// # Errors
    ///
    /// None; the type is that of a call whose extractors may fail.
    pub fn returned(result: impl IntoCallToolResult) -> Result<Self, NotCalled> {
        Ok(Self(Handled::by_author(result.into_call_tool_result())))
    }
}

impl From<Result<Self, NotCalled>> for Outcome {
    fn from(called: Result<Self, NotCalled>) -> Self {
        called.unwrap_or_else(|NotCalled(error)| Self(Handled::not_called(error)))
    }
}

/// Begins an attempt, or answers. A macro, because each mode has an engine method of its own that
/// borrows the request while it runs.
macro_rules! begin {
    ($begin:ident, $idempotency:expr, $policy:expr, $call:expr, $is_listed:expr) => {
        $crate::execute::begin!($begin, $idempotency, $policy, $call, $is_listed, None)
    };
    ($begin:ident, $idempotency:expr, $policy:expr, $call:expr, $is_listed:expr, $verify:expr) => {{
        let verify: Option<&dyn mcp_idempotent_core::Verify> = $verify;
        let (idempotency, call) = ($idempotency, $call);
        let hook = idempotency.settings().authorize.as_ref();
        let authorize = hook.map(|hook| $crate::scope::AuthorizeRequest {
            hook,
            context: &call.context,
        });
        $crate::execute::guarded(async {
            let request = $crate::execute::identify(idempotency, $policy, call, $is_listed)?;
            let request = match &authorize {
                Some(authorize) => request.with_authorize(authorize),
                None => request,
            };
            let request = match verify {
                Some(verify) => request.with_verify(verify),
                None => request,
            };
            Ok(idempotency.engine.$begin(request).await)
        })
        .await
    }};
}
pub(crate) use begin;

/// Runs a handler in transaction mode. It is made only when it is to run.
pub(crate) async fn in_transaction<S, H>(
    idempotency: &Idempotency<S>,
    options: &'static ToolOptions,
    call: Call,
    handler: impl FnOnce() -> H,
) -> Result<CallToolResponse, ErrorData>
where
    S: TransactionStore,
    H: for<'c> FnOnce(Call, &'c mut S::Connection) -> BoxFuture<'c, Result<Outcome, NotCalled>>
        + Send
        + 'static,
{
    let AnnotatedTool {
        policy,
        added_argument,
    } = idempotency.annotated(options);
    let mut attempt = match begin!(begin_transaction, idempotency, &policy, &call, true) {
        Err(refusal) => return refuse(idempotency, &refusal),
        Ok(Begun::Answer(answer)) => return answer_without_running(idempotency, answer),
        // Only lease mode can be told to do without a store.
        Ok(Begun::Unprotected) => return refuse(idempotency, &unprotected_transaction()),
        Ok(Begun::Attempt(attempt)) => attempt,
    };
    // In a box: the futures below each have a place for it.
    let call = Box::new(without_argument(call, added_argument));
    let idempotency = idempotency.clone();
    let handler = handler();
    let running = idempotency.executions().enter();
    DetachOnDrop::new(async move {
        let _running = running;
        let outcome = attempt
            .run(move |connection| handler(*call, connection))
            .await;
        let handled = handled(outcome, CommitOutcome::NotCommitted);
        let answer = attempt.finish(&handled).await;
        answer_after_running(&idempotency, answer, handled)
    })
    .await
}

/// Runs a handler in lease mode. It is made only when it is to run.
pub(crate) async fn under_lease<S, H>(
    idempotency: &Idempotency<S>,
    options: &'static ToolOptions,
    call: Call,
    verify: Option<impl for<'a> Fn(InDoubt<'a>) -> Verifying<'a> + Send + Sync>,
    handler: impl FnOnce() -> H,
) -> Result<CallToolResponse, ErrorData>
where
    S: Store,
    H: FnOnce(Call) -> BoxFuture<'static, Result<Outcome, NotCalled>> + Send + 'static,
{
    let AnnotatedTool {
        policy,
        added_argument,
    } = idempotency.annotated(options);
    let verify = verify.map(|verify| VerifyCall {
        verify,
        call: &call,
        added_argument,
    });
    let verify = verify.as_ref().map(|verify| verify as &dyn Verify);
    let begun = begin!(begin, idempotency, &policy, &call, true, verify);
    let mut attempt = match begun {
        Err(refusal) => return refuse(idempotency, &refusal),
        Ok(Begun::Answer(answer)) => return answer_without_running(idempotency, answer),
        Ok(Begun::Attempt(attempt)) => attempt,
        Ok(Begun::Unprotected) => unprotected(idempotency, &policy, &call),
    };
    // In a box: the futures below each have a place for it.
    let mut call = Box::new(without_argument(call, added_argument));
    let idempotency = idempotency.clone();
    let handler = handler();
    let running = idempotency.executions().enter();
    DetachOnDrop::new(async move {
        let _running = running;
        let (current, ct) = attend(&attempt, &mut call.context);
        // Calling the handler may panic too, before there is a future.
        let outcome = attempt
            .run(current.during(ct, async move { handler(*call).await }))
            .await;
        let handled = handled(outcome, CommitOutcome::Unknown);
        let answer = attempt.finish(&handled).await;
        answer_after_running(&idempotency, answer, handled)
    })
    .await
}

/// An attempt at a call without a key, or while the store is away.
pub(crate) fn unprotected<S: Store>(
    idempotency: &Idempotency<S>,
    policy: &Arc<Policy>,
    call: &Call,
) -> LeaseAttempt<S> {
    let call = CallInfo::new(&*call.name, Scope::new(""));
    idempotency.engine.unprotected_attempt(call, policy)
}

/// Lets a handler ask for its attempt, and makes its token one that fires with the lease too.
pub(crate) fn attend<S: Store>(
    attempt: &LeaseAttempt<S>,
    context: &mut RequestContext<RoleServer>,
) -> (Attempt, CancellationToken) {
    let current = Attempt::new(attempt.handle());
    context.extensions.insert(current.clone());
    context.ct = context.ct.child_token();
    (current, context.ct.clone())
}

/// What comes before the handler runs code of the author's too: scope, authorization, set-up. A
/// panic there would leave the client without an answer.
pub(crate) fn guarded<T>(
    before: impl Future<Output = Result<T, Refusal>>,
) -> impl Future<Output = Result<T, Refusal>> {
    // No `async fn`: it would keep a second place for what it is given.
    AssertUnwindSafe(before)
        .catch_unwind()
        .map(|before| before.unwrap_or_else(|_| Err(panicked_before())))
}

pub(crate) fn identify<'a, S: Store>(
    idempotency: &Idempotency<S>,
    policy: &'a Arc<Policy>,
    call: &Call,
    is_listed: bool,
) -> Result<Request<'a>, Refusal> {
    match identity_of(idempotency, policy, call) {
        Ok(request) if is_listed => Ok(request),
        Ok(request) => Ok(request.with_unlisted_tool()),
        Err(refusal) => {
            let tool = if is_listed {
                &*call.name
            } else {
                UNLISTED_TOOL
            };
            idempotency.engine.observe_refusal(tool, &refusal);
            Err(refusal)
        }
    }
}

fn identity_of<'a, S: Store>(
    idempotency: &Idempotency<S>,
    policy: &'a Arc<Policy>,
    call: &Call,
) -> Result<Request<'a>, Refusal> {
    let tool: Arc<str> = Arc::from(&*call.name);
    let key = call.key(policy.key_argument.as_deref())?;
    let kind = match (&key, policy.key) {
        (Some(_), _) => KeyKind::Explicit,
        (None, KeyRequirement::Required) => return Err(key_required(policy)),
        (None, KeyRequirement::Explicit) => {
            let call = CallInfo::new(tool, Scope::new(""));
            return Ok(Request::unprotected(call, policy));
        }
        (None, _) => KeyKind::Derived,
    };
    let engine = &idempotency.engine;
    let scope =
        idempotency
            .settings()
            .scope
            .resolve(&call.context, engine.store().reach(), kind)?;
    let left_out: Vec<Arc<str>>;
    let left_out = match &policy.key_argument {
        None => &*policy.ignored,
        Some(argument) => {
            left_out = policy.ignored.iter().chain([argument]).cloned().collect();
            &left_out
        }
    };
    let arguments = CanonicalArguments::new(call.arguments.as_ref(), left_out);
    let identity = engine.identify(&scope, key.as_ref(), &tool, &arguments);
    Ok(Request::new(CallInfo::new(tool, scope), identity, policy).with_round(call.round()))
}

fn without_argument(mut call: Call, added: Option<&str>) -> Call {
    if let Some(name) = added
        && let Some(arguments) = &mut call.arguments
    {
        arguments.remove(name);
    }
    call
}

fn handled(
    called: Result<Result<Outcome, NotCalled>, Interrupted>,
    if_interrupted: CommitOutcome,
) -> Handled {
    match called {
        Ok(called) => Outcome::from(called).0,
        Err(why) => Handled::interrupted(why, if_interrupted),
    }
}

pub(crate) fn answer_without_running<S>(
    idempotency: &Idempotency<S>,
    answer: Answer,
) -> ToolResult {
    match answer {
        Answer::Replayed(replay) => {
            result::replay(&replay, idempotency.settings().announce_replays).unwrap_or_else(
                |error| {
                    tracing::error!(%error, "a stored result could not be read");
                    refuse(idempotency, &unreadable())
                },
            )
        }
        Answer::Refused(refusal) => refuse(idempotency, &refusal),
        Answer::Executed => refuse(idempotency, &unreadable()),
    }
}

pub(crate) fn answer_after_running<S>(
    idempotency: &Idempotency<S>,
    answer: Answer,
    handled: Handled,
) -> ToolResult {
    match answer {
        Answer::Executed => handled.result,
        other => answer_without_running(idempotency, other),
    }
}

pub(crate) fn refuse<S>(idempotency: &Idempotency<S>, refusal: &Refusal) -> ToolResult {
    if idempotency.settings().refusals_as_results {
        Ok(wire::error_result(refusal).into())
    } else {
        Err(wire::error_data(refusal))
    }
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

fn unreadable() -> Refusal {
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

pub(crate) fn unprotected_transaction() -> Refusal {
    Refusal::new(
        ErrorKind::StoreUnavailable,
        CommitOutcome::NotCommitted,
        Action::RetrySameKey,
        "The store of idempotency records could not be reached, so the call was not executed. Send \
         it again with the same key.",
    )
}
