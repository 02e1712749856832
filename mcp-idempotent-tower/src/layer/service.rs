//! The layer's service.

use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{ResultKind, Store};
use rmcp::{
    ErrorData,
    model::{CallToolResponse, Tool},
};
use tower::Service;

use super::{
    IdempotencyLayer, has_contract,
    rule::{self, Handler, Kind},
    stack::{self, ErrorOrigin, IntoErrorData, not_ready, told},
};
use crate::call::{
    Incoming as _, ToolCall,
    key::Places,
    not_executed::NotExecuted,
    refusal,
    result::{self, Handled, ToolResult},
    run::{self, Rules},
};

/// Runs each call of the service below once. Always ready: the service below is made ready only for a
/// call that executes.
pub struct IdempotencyService<T, S> {
    inner: T,
    layer: IdempotencyLayer<S>,
}

impl<T, S> IdempotencyService<T, S> {
    pub(super) const fn new(inner: T, layer: IdempotencyLayer<S>) -> Self {
        Self { inner, layer }
    }
}

impl<T, S> Service<ToolCall> for IdempotencyService<T, S>
where
    S: Store,
    T: Service<ToolCall, Response = CallToolResponse> + Clone + Send + 'static,
    T::Error: IntoErrorData + Send,
    T::Future: Send,
{
    type Response = CallToolResponse;
    type Error = ErrorData;
    type Future = BoxFuture<'static, ToolResult>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ErrorData>> {
        // Being ready may take a permit of the service below, and most calls do not get that far.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let inner = self.inner.clone();
        // Without another future if possible: each one that a waiting duplicate is in takes memory.
        if let Some(tool) = call.known_tool() {
            return answer(&self.layer, inner, call, Some(&tool));
        }
        let layer = self.layer.clone();
        Box::pin(async move {
            let tool = call.tool().await;
            answer(&layer, inner, call, tool.as_deref()).await
        })
    }
}

fn answer<T, S>(
    layer: &IdempotencyLayer<S>,
    inner: T,
    call: ToolCall,
    tool: Option<&Tool>,
) -> BoxFuture<'static, ToolResult>
where
    S: Store,
    T: Service<ToolCall, Response = CallToolResponse> + Send + 'static,
    T::Error: IntoErrorData + Send,
    T::Future: Send,
{
    let is_known = tool.is_some();
    let rule = layer.shared.rule(call.name(), tool);
    if matches!(rule.kind, Kind::Untouched) || has_contract(tool) || call.is_protected() {
        // A mark of `NotExecuted` stays, for the layer that deduplicates the call.
        return Box::pin(stack::pass(inner, call));
    }
    let read_only = rule::is_read_only(tool);
    let policy = rule.policy_for(read_only);
    let has_key = || {
        let places = Places::of(call.meta(), call.arguments(), policy);
        places.values().next().is_some()
    };
    let transaction = match rule.kind {
        Kind::Transaction(_) if read_only && rule.by_default && !has_key() => None,
        Kind::Transaction(run) => Some(run),
        Kind::Lease | Kind::Untouched => None,
    };
    let idempotency = layer.shared.idempotency.clone();
    let rules = Rules {
        idempotency: idempotency.clone(),
        policy: Arc::clone(policy),
        verify: rule.verify.clone(),
        added_argument: rule.added_argument(tool).map(Arc::from),
        must_write: !read_only,
        is_listed: is_known,
    };
    let handler: Handler = Box::new(move |call| Box::pin(execute(inner, call)));
    let call = Box::new(call);
    Box::pin(async move {
        let reply = match transaction {
            Some(run) => run(rules, call, handler).await,
            None => {
                run::under_lease(rules, call, move |call, attempt| {
                    call.executed().attended(attempt, handler)
                })
                .await
            }
        };
        result::answer(&idempotency, reply)
    })
}

/// Makes the service below ready, calls it, and says what its answer means for the record.
///
/// Only what was observed at the handler counts, not an error's text, code or type: handlers and services
/// that retry may return any of those.
async fn execute<T>(mut inner: T, call: ToolCall) -> Handled
where
    T: Service<ToolCall, Response = CallToolResponse>,
    T::Error: IntoErrorData,
{
    if let Err(error) = poll_fn(|cx| inner.poll_ready(cx)).await {
        return Handled {
            kind: ResultKind::NotExecuted,
            result: Err(unmarked(not_ready(error).1)),
        };
    }
    let observation = call.observation();
    let result = match inner.call(call).await {
        Ok(response) => Ok(response),
        Err(error) => match told(error, || observation.proves_nothing_ran()) {
            (ErrorOrigin::Handler, error) => Err(error),
            (origin, error) => {
                let kind = match origin {
                    ErrorOrigin::BeforeHandler => ResultKind::NotExecuted,
                    _ => ResultKind::Interrupted,
                };
                let result = Err(unmarked(error));
                return Handled { kind, result };
            }
        },
    };
    let mut handled = if observation.ends_in_handler {
        Handled::returned(result)
    } else {
        // A service stands in for the handler, so nobody has looked at this answer yet.
        Handled::by_author(result)
    };
    if handled.kind == ResultKind::NotExecuted && observation.has_seen_more() {
        handled.kind = ResultKind::ProtocolError;
    }
    if matches!(&handled.result, Err(error) if refusal::is_of_unknown_outcome(error)) {
        // A timeout in a server below that has layers of its own. One that the handler itself returned
        // would be marked as an upstream's.
        handled.kind = ResultKind::Interrupted;
    }
    handled
}

fn unmarked(mut error: ErrorData) -> ErrorData {
    NotExecuted::unmark(&mut error);
    error
}

impl<T: Clone, S> Clone for IdempotencyService<T, S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<T, S> fmt::Debug for IdempotencyService<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService")
            .field("layer", &self.layer)
            .finish_non_exhaustive()
    }
}
