//! Tool handlers as tower services.

use std::{
    any::TypeId,
    convert::Infallible,
    fmt,
    future::{Future, poll_fn},
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;
use rmcp::{ErrorData, ServerHandler, model::CallToolResponse};
use tower::{BoxError, Service};

use crate::{
    NotExecuted,
    call::{
        ToolCall,
        definition::SharedHandler,
        provenance::{self, Inside},
        refusal, seal,
    },
};

/// The innermost service of a stack: a [`ServerHandler`]'s own `call_tool`. Always ready.
///
/// This is the only place that sees whether the handler was entered. It also marks what the handler
/// passes on, in this crate's names, from another server.
pub struct HandlerService<H> {
    shared: Arc<SharedHandler<H>>,
    _caller: Arc<()>,
}

impl<H: ServerHandler> HandlerService<H> {
    pub(crate) fn around(handler: H) -> (Self, Arc<SharedHandler<H>>) {
        let caller = Arc::new(());
        let shared = Arc::new(SharedHandler::new(handler, &caller));
        let service = Self {
            shared: Arc::clone(&shared),
            _caller: caller,
        };
        (service, shared)
    }
}

impl<H: ServerHandler> Service<ToolCall> for HandlerService<H> {
    type Response = CallToolResponse;
    type Error = ErrorData;
    type Future = BoxFuture<'static, Result<CallToolResponse, ErrorData>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ErrorData>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut call: ToolCall) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let entries = call.entries().cloned();
            if entries.as_ref().is_some_and(|entries| !entries.enter()) {
                return Err(NotExecuted::mark(refusal::not_called()));
            }
            call.context.extensions.insert(Inside {
                handler: TypeId::of::<H>(),
                is_executed: call.is_protected(),
            });
            let (mut result, did_nothing) = seal::run(async {
                let called = shared.handler.call_tool(call.params, call.context);
                let mut result = called.await;
                let did_nothing = provenance::settle(&mut result);
                (result, did_nothing)
            })
            .await;
            if did_nothing {
                // Marked again, now for the layer that runs the call.
                NotExecuted::mark_answer(&mut result);
                if let Some(entries) = entries {
                    entries.did_nothing();
                }
            }
            result
        })
    }
}

impl<H> Clone for HandlerService<H> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            _caller: Arc::clone(&self._caller),
        }
    }
}

impl<H> fmt::Debug for HandlerService<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerService").finish_non_exhaustive()
    }
}

/// A stack of services that a server can call: `Service<ToolCall, Response = CallToolResponse>`
/// that is `Clone + Send + Sync + 'static` with an error that can be told to a client. Implemented
/// for every such service.
///
/// A service that is not `Clone` or not `Sync` is refused, because calls run concurrently:
///
/// ```compile_fail
/// # use mcp_idempotent_tower::ServerExt; use tower::{limit::RateLimitLayer, layer::layer_fn, util::BoxCloneService};
/// # use std::time::Duration; #[derive(Clone)] struct Server; impl rmcp::ServerHandler for Server {}
/// Server.layered(RateLimitLayer::new(10, Duration::from_secs(1))); // not `Clone`
/// ```
///
/// ```compile_fail
/// # use mcp_idempotent_tower::ServerExt; use tower::{limit::RateLimitLayer, layer::layer_fn, util::BoxCloneService};
/// # use std::time::Duration; #[derive(Clone)] struct Server; impl rmcp::ServerHandler for Server {}
/// Server.layered(layer_fn(BoxCloneService::new)); // not `Sync`
/// ```
///
/// ```
/// # use mcp_idempotent_tower::ServerExt; use tower::{ServiceBuilder, buffer::BufferLayer, limit::RateLimitLayer, layer::layer_fn, util::BoxCloneSyncService};
/// # use std::time::Duration; #[derive(Clone)] struct Server; impl rmcp::ServerHandler for Server {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let limit = ServiceBuilder::new().layer(BufferLayer::new(8)).layer(RateLimitLayer::new(10, Duration::from_secs(1)));
/// drop(Server.layered(limit).layered(layer_fn(BoxCloneSyncService::new)));
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot answer the tool calls of a server",
    label = "not a `Service<ToolCall, Response = CallToolResponse>` that is `Clone + Send + Sync + 'static`",
    note = "calls run concurrently, so each is given a clone of the stack: put `BufferLayer` above a service that is not `Clone` (such as tower's `RateLimit`), and `BoxCloneSyncService` instead of `BoxCloneService`",
    note = "the service's error must be `ErrorData`, `BoxError`, `Infallible` or another type with `IntoErrorData`, and its future must be `Send`"
)]
pub trait ToolService:
    Service<ToolCall, Response = CallToolResponse, Error: IntoErrorData + Send, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
    /// Waits until the service is ready, and calls it.
    fn oneshot(
        &self,
        call: ToolCall,
    ) -> impl Future<Output = Result<CallToolResponse, ErrorData>> + Send;
}

#[diagnostic::do_not_recommend]
impl<T> ToolService for T
where
    T: Service<ToolCall, Response = CallToolResponse> + Clone + Send + Sync + 'static,
    T::Error: IntoErrorData + Send,
    T::Future: Send,
{
    async fn oneshot(&self, call: ToolCall) -> Result<CallToolResponse, ErrorData> {
        pass(self.clone(), call).await
    }
}

/// Waits until a service is ready, calls it, and turns its error into one for the client.
pub(super) async fn pass<T>(mut service: T, call: ToolCall) -> Result<CallToolResponse, ErrorData>
where
    T: Service<ToolCall, Response = CallToolResponse>,
    T::Error: IntoErrorData,
{
    if let Err(error) = poll_fn(|cx| service.poll_ready(cx)).await {
        return Err(not_ready(error).1);
    }
    let evidence = call.evidence();
    let answer = service.call(call).await;
    answer.map_err(|error| read_error(error, || evidence.shows_nothing()).1)
}

/// What an error of a stack says about the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorOrigin {
    /// The handler returned it.
    Handler,
    /// Another service refused the call before the handler was called. This is only believed if it
    /// was also observed: a retry above that service may have called the handler earlier.
    BeforeHandler,
    /// Another service gave up on the call; the handler may have run, or may have been dropped
    /// halfway.
    Unknown,
}

/// Turns an error of a stack of services into one for the client.
///
/// Implemented for [`ErrorData`] (the handler's own error, unchanged), [`BoxError`] (a boxed
/// [`ErrorData`], tower's `Elapsed` and `Overloaded`, or anything else) and [`Infallible`].
/// `outcome` in the error's `data` tells the client whether the handler ran: `not_committed` or
/// `unknown`. The texts of other errors are logged and not sent.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be told to an MCP client",
    note = "implement `IntoErrorData` for it, or turn it into `ErrorData` with `map_err`"
)]
pub trait IntoErrorData: Into<BoxError> {
    /// What it says about the handler.
    fn origin(&self) -> ErrorOrigin;

    /// What the client is told.
    fn into_error_data(self) -> ErrorData;
}

impl IntoErrorData for ErrorData {
    fn origin(&self) -> ErrorOrigin {
        ErrorOrigin::Handler
    }

    fn into_error_data(self) -> ErrorData {
        self
    }
}

impl IntoErrorData for Infallible {
    fn origin(&self) -> ErrorOrigin {
        match *self {}
    }

    fn into_error_data(self) -> ErrorData {
        match self {}
    }
}

impl IntoErrorData for BoxError {
    fn origin(&self) -> ErrorOrigin {
        if self.is::<ErrorData>() {
            ErrorOrigin::Handler
        } else if self.is::<tower::load_shed::error::Overloaded>() {
            ErrorOrigin::BeforeHandler
        } else {
            ErrorOrigin::Unknown
        }
    }

    fn into_error_data(self) -> ErrorData {
        let error = match self.downcast::<ErrorData>() {
            Ok(error) => return *error,
            Err(error) => error,
        };
        if error.is::<tower::timeout::error::Elapsed>() {
            refusal::timed_out()
        } else if error.is::<tower::load_shed::error::Overloaded>() {
            refusal::overloaded()
        } else {
            tracing::error!(
                error = &*error as &dyn std::error::Error,
                "a service around the tool handler failed"
            );
            refusal::failed()
        }
    }
}

/// What an error of a service says, unless what was observed of the call contradicts it.
pub(crate) fn read_error(
    error: impl IntoErrorData,
    nothing_ran: impl FnOnce() -> bool,
) -> (ErrorOrigin, ErrorData) {
    match error.origin() {
        ErrorOrigin::BeforeHandler if !nothing_ran() => {
            tracing::warn!(
                error = &*error.into() as &dyn std::error::Error,
                "a service around the tool handler refused a call that may have run before"
            );
            (ErrorOrigin::Unknown, refusal::failed())
        }
        origin => (origin, error.into_error_data()),
    }
}

/// The error of a service that is not ready. Whatever its type, the handler was not called.
pub(crate) fn not_ready(error: impl IntoErrorData) -> (ErrorOrigin, ErrorData) {
    let origin = error.origin();
    let mut data = error.into_error_data();
    if origin == ErrorOrigin::Unknown {
        data = refusal::not_called();
    }
    (ErrorOrigin::BeforeHandler, data)
}
