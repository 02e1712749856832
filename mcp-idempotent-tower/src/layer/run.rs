//! One call under the layer, from its key to its answer.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Action, Begun, CommitOutcome, DetachOnDrop, ErrorKind, HandlerResult as _, Policy, Refusal,
    ResultKind, Store, TransactionStore, Verify,
};

use crate::{
    Idempotency,
    call::Call,
    execute,
    extract::{Closed, Slot},
    result::{Handled, ToolResult},
    tool_call::ToolCall,
    verify::{InDoubt, VerifyCall, Verifying},
};

/// The author's function for calls in doubt.
pub(super) type VerifyFn = Arc<dyn for<'a> Fn(InDoubt<'a>) -> Verifying<'a> + Send + Sync>;

/// The services below the layer, at work on one call.
pub(super) type Handler = Box<dyn FnOnce(ToolCall) -> BoxFuture<'static, Handled> + Send>;

/// What one call needs to know of its tool.
pub(super) struct Execution<S> {
    pub(super) idempotency: Idempotency<S>,
    pub(super) policy: Arc<Policy>,
    /// Lease mode: the author's function for calls in doubt.
    pub(super) verify: Option<VerifyFn>,
    /// The key argument, where it is not one of the tool's own.
    pub(super) added_argument: Option<Box<str>>,
    /// Transaction mode: it may leave the transaction alone.
    pub(super) read_only: bool,
    /// Whether the server lists the tool.
    pub(super) is_listed: bool,
}

/// Lease mode, and calls that nothing protects.
pub(super) async fn under_lease<S: Store>(
    execution: Execution<S>,
    call: ToolCall,
    handler: Handler,
) -> ToolResult {
    let (call, rest) = call.into_call();
    // In a box: the futures below each have a place for it.
    let call = Box::new(call);
    let verify = execution.verify.as_ref().map(|verify| VerifyCall {
        verify: &**verify,
        call: &call,
        added_argument: execution.added_argument.as_deref(),
    });
    let begun = execute::begin!(
        begin,
        &execution.idempotency,
        &execution.policy,
        &call,
        execution.is_listed,
        verify.as_ref().map(|verify| verify as &dyn Verify)
    );
    let idempotency = execution.idempotency;
    let mut attempt = match begun {
        Err(refusal) => return execute::refuse(&idempotency, &refusal),
        Ok(Begun::Answer(answer)) => return execute::answer_without_running(&idempotency, answer),
        Ok(Begun::Attempt(attempt)) => attempt,
        // Nothing is ours to protect: as without the layer, a caller that leaves stops it.
        Ok(Begun::Unprotected(info)) => {
            let attempt = idempotency
                .engine
                .unprotected_attempt(info, &execution.policy);
            let mut call = rest.with(without(*call, execution.added_argument.as_deref()));
            let (current, ct) = execute::attend(&attempt, &mut call.context);
            let handled = current.during(ct, handler(call)).await;
            let answer = attempt.finish(&handled).await;
            return execute::answer_after_running(&idempotency, answer, handled);
        }
    };
    let mut call = rest.with(without(*call, execution.added_argument.as_deref()));
    let running = idempotency.executions().enter();
    DetachOnDrop::new(async move {
        let _running = running;
        // Calling the handler may panic too, before there is a future.
        let (current, ct) = execute::attend(&attempt, &mut call.context);
        let ran = attempt
            .run(current.during(ct, async move { handler(call).await }))
            .await;
        let handled = ran.unwrap_or_else(|why| Handled::interrupted(why, CommitOutcome::Unknown));
        let answer = attempt.finish(&handled).await;
        execute::answer_after_running(&idempotency, answer, handled)
    })
    .await
}

/// Transaction mode: the handler takes the transaction from a slot.
pub(super) fn in_transaction<S: TransactionStore>(
    execution: Execution<S>,
    call: ToolCall,
    handler: Handler,
) -> BoxFuture<'static, ToolResult> {
    Box::pin(async move {
        let (call, rest) = call.into_call();
        let call = Box::new(call);
        let begun = execute::begin!(
            begin_transaction,
            &execution.idempotency,
            &execution.policy,
            &call,
            execution.is_listed
        );
        let Execution {
            idempotency,
            added_argument,
            read_only,
            ..
        } = execution;
        let attempt = match begun {
            Err(refusal) => return execute::refuse(&idempotency, &refusal),
            Ok(Begun::Answer(answer)) => {
                return execute::answer_without_running(&idempotency, answer);
            }
            // Only lease mode can be told to do without a store.
            Ok(Begun::Unprotected(_)) => {
                return execute::refuse(&idempotency, &execute::unprotected_transaction());
            }
            Ok(Begun::Attempt(attempt)) => attempt,
        };
        let (transaction, attempt) = attempt.lend();
        let slot = Slot::<S>::open(transaction);
        let mut call = rest.with(without(*call, added_argument.as_deref()));
        call.context.extensions.insert(slot.clone());
        let running = idempotency.executions().enter();
        DetachOnDrop::new(async move {
            let _running = running;
            let ran = attempt
                .run(slot.during(async move { handler(call).await }))
                .await;
            let mut handled =
                ran.unwrap_or_else(|why| Handled::interrupted(why, CommitOutcome::NotCommitted));
            let answer = match slot.close() {
                Closed::StillHeld => attempt.give_up(),
                Closed::Returned { transaction, taken } => {
                    if !taken && !read_only && is_success(handled.kind()) {
                        handled = not_taken(&idempotency);
                    }
                    attempt.take_back(transaction).finish(&handled).await
                }
            };
            execute::answer_after_running(&idempotency, answer, handled)
        })
        .await
    })
}

fn without(mut call: Call, argument: Option<&str>) -> Call {
    if let Some(name) = argument
        && let Some(arguments) = &mut call.arguments
    {
        arguments.remove(name);
    }
    call
}

const fn is_success(kind: ResultKind) -> bool {
    matches!(kind, ResultKind::Success | ResultKind::Task)
}

/// A success without the transaction: what the tool did elsewhere cannot be part of the record.
fn not_taken<S>(idempotency: &Idempotency<S>) -> Handled {
    let message = "This tool is declared to write through the call's transaction, but it returned \
                   without having taken it. What it did elsewhere is not undone, so it is not known \
                   whether it took effect. Its author must take `Tx` in the handler, or declare the \
                   tool with `Rule::lease`.";
    tracing::error!(
        message,
        "a tool in transaction mode did not take its transaction"
    );
    let refusal = Refusal::new(
        ErrorKind::Misconfigured,
        CommitOutcome::Unknown,
        Action::AskOperator,
        message,
    );
    Handled {
        // Rolled back, and nothing recorded, whatever the rule says of errors.
        kind: ResultKind::Interrupted,
        result: execute::refuse(idempotency, &refusal),
    }
}
