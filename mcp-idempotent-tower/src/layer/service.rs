//! The layer's service.

use std::{
    fmt,
    future::{self, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{FutureExt as _, future::BoxFuture};
use mcp_idempotent_core::{ResultKind, Store};
use rmcp::{
    ErrorData,
    model::{CallToolResponse, Tool},
};
use tower::Service;

use super::{
    IdempotencyLayer, has_contract,
    rule::{self, Handler, Kind},
    stack::{self, ErrorOrigin, IntoErrorData, not_ready, read_error},
};
use crate::call::{
    Incoming as _, ToolCall, ToolResult,
    key::{KeyMaker, Places},
    not_executed::NotExecuted,
    reader::Reader,
    refusal,
    result::{self, Handled},
    rules::Rules,
    run,
    schema::SchemaHash,
};

/// Runs each call of the service below once. Always ready: the service below is made ready only for
/// a call that executes.
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
        // Readiness may take a permit of the service below, and most calls do not get that far.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let inner = self.inner.clone();
        // Avoid another future: each costs memory per waiting duplicate.
        if let Some(tool) = call.known_tool() {
            return answer(&self.layer, inner, call, Some(&tool));
        }
        let layer = self.layer.clone();
        Box::pin(async move {
            match AssertUnwindSafe(call.tool()).catch_unwind().await {
                Ok(tool) => answer(&layer, inner, call, tool.as_deref()).await,
                Err(_) => panicked(&layer, &call),
            }
        })
    }
}

/// The look-up of the tool, or the author's predicate that chooses a rule, panicked.
fn panicked<S>(layer: &IdempotencyLayer<S>, call: &ToolCall) -> ToolResult {
    let form = layer.shared.idempotency.settings().refusal_form;
    let reader = Reader::of_any_tool(form, KeyMaker::of_meta(call.meta()));
    reader.refused(&refusal::panicked_before())
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
    let rule = catch_unwind(AssertUnwindSafe(|| layer.shared.rule(call.name(), tool)));
    let Ok(rule) = rule else {
        return Box::pin(future::ready(panicked(layer, &call)));
    };
    if matches!(rule.kind, Kind::Untouched) || has_contract(tool) || call.is_protected() {
        // A mark of `NotExecuted` stays, for the layer that deduplicates the call.
        return Box::pin(stack::pass(inner, call));
    }
    let read_only = rule::is_read_only(tool);
    let policy = rule.policy_for(read_only);
    let maker = Places::of(call.meta(), call.arguments(), policy).maker();
    let schema = tool.and_then(|tool| tool.output_schema.as_ref());
    let schema = schema.filter(|_| layer.shared.idempotency.settings().check_output_schemas);
    let schema = schema.map(|schema| SchemaHash::of(schema));
    let reader = Reader {
        form: layer.shared.idempotency.settings().refusal_form,
        maker,
        schema,
        policy: Some(Arc::clone(policy)),
    };
    let transaction = match rule.kind {
        Kind::Transaction(_) if read_only && rule.by_default && maker == KeyMaker::Nobody => None,
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
        unused: None,
        is_listed: is_known,
    };
    let classify = rule.classify.clone();
    let handler: Handler = Box::new(move |call| {
        Box::pin(async move {
            let handled = execute(inner, call).await;
            handled.classified(classify.as_deref()).under_schema(schema)
        })
    });
    let call = Box::new(call);
    Box::pin(async move {
        let reply = match transaction {
            Some(run) => run(rules, call, handler).await,
            None => {
                run::under_lease(rules, call, move |call, attempt| {
                    let attempt = attempt.under_schema(schema);
                    call.executed().attended(attempt, handler)
                })
                .await
            }
        };
        result::answer(&idempotency, &reader, reply)
    })
}

/// Makes the service below ready, calls it, and says what its answer means for the record.
///
/// Only what was observed at the handler counts, not an error's text, code or type: handlers and
/// services that retry may return any of those.
async fn execute<T>(mut inner: T, call: ToolCall) -> Handled
where
    T: Service<ToolCall, Response = CallToolResponse>,
    T::Error: IntoErrorData,
{
    if let Err(error) = poll_fn(|cx| inner.poll_ready(cx)).await {
        return Handled::failed(ResultKind::NotExecuted, unmarked(not_ready(error).1));
    }
    let evidence = call.evidence();
    let result = match inner.call(call).await {
        Ok(response) => Ok(response),
        Err(error) => match read_error(error, || evidence.proves_nothing_ran()) {
            (ErrorOrigin::Handler, error) => Err(error),
            (origin, error) => {
                let kind = match origin {
                    ErrorOrigin::BeforeHandler => ResultKind::NotExecuted,
                    _ => ResultKind::Interrupted,
                };
                return Handled::failed(kind, unmarked(error));
            }
        },
    };
    let mut handled = if evidence.ends_in_handler {
        Handled::settled(result)
    } else {
        // A service stands in for the handler, so nobody has looked at this answer yet.
        Handled::by_author(result)
    };
    if handled.kind == ResultKind::NotExecuted && evidence.has_seen_more() {
        handled.kind = ResultKind::ProtocolError;
    }
    if matches!(&handled.result, Err(error) if refusal::is_of_unknown_outcome(error)) {
        // A timeout in a server below that has layers of its own. One that the handler itself
        // returned would be marked as an upstream's.
        handled.kind = ResultKind::Interrupted;
    }
    handled
}

fn unmarked(mut error: ErrorData) -> ErrorData {
    NotExecuted::unmark_failure(&mut error);
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
