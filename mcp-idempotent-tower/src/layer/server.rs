//! A stack of services as a server.

use std::{fmt, sync::Arc};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::Store;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{CustomRequest, CustomResult, ServerCapabilities, Tool},
    service::RequestContext,
};
use tower::Layer;

use super::{
    IdempotencyLayer, IdempotencyService,
    stack::{HandlerService, ToolService},
};
use crate::call::{
    definition::{Definitions, SharedHandler},
    reader::RefusalForm,
};

/// Puts tower layers around the tool calls of a server.
///
/// Calls nest: the last layer is the outermost. The result is a [`ServerHandler`] and is served
/// like any other. Everything except `call_tool` goes straight to the handler.
///
/// ```
/// use std::time::Duration;
/// use mcp_idempotent_tower::{Idempotency, MemoryStore, OnError, ServerExt, layer::{IdempotencyLayer, Rule}};
/// use tower::{limit::ConcurrencyLimitLayer, timeout::TimeoutLayer};
/// # use rmcp::{ServerHandler, handler::server::wrapper::Parameters, schemars, tool, tool_router};
/// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Text { text: String }
/// # struct Mailer;
/// # #[tool_router(server_handler)] impl Mailer {
/// #     /// Sends.
/// #     #[tool] async fn send(&self, Parameters(t): Parameters<Text>) -> String { t.text }
/// # }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let idempotency = Idempotency::for_stdio("mailer", MemoryStore::new())?;
/// let server = Mailer
///     .layered(ConcurrencyLimitLayer::new(16)) // handlers
///     .idempotent(IdempotencyLayer::new(idempotency, Rule::lease(OnError::InDoubt))?)
///     .layered(TimeoutLayer::new(Duration::from_secs(30))); // callers
/// # fn served(_: impl ServerHandler) {}
/// # served(server);
/// # Ok(())
/// # }
/// ```
pub trait ServerExt: ServerHandler {
    /// Puts a layer around the tool calls: one from tower, a whole
    /// [`ServiceBuilder`](tower::ServiceBuilder), or your own.
    fn layered<L>(self, layer: L) -> LayeredServer<Self, L::Service>
    where
        L: Layer<HandlerService<Self>>,
        L::Service: ToolService;

    /// Runs each tool call once, advertises that to clients, and answers the
    /// [status request](crate::wire::STATUS_METHOD).
    fn idempotent<S: Store>(
        self,
        layer: IdempotencyLayer<S>,
    ) -> LayeredServer<Self, IdempotencyService<HandlerService<Self>, S>>;
}

impl<H: ServerHandler> ServerExt for H {
    fn layered<L>(self, layer: L) -> LayeredServer<Self, L::Service>
    where
        L: Layer<HandlerService<Self>>,
        L::Service: ToolService,
    {
        let (service, shared) = HandlerService::around(self);
        LayeredServer {
            service: layer.layer(service),
            shared,
            fronts: Vec::new(),
        }
    }

    fn idempotent<S: Store>(
        self,
        layer: IdempotencyLayer<S>,
    ) -> LayeredServer<Self, IdempotencyService<HandlerService<Self>, S>> {
        let mut server = self.layered(layer.clone());
        server.fronts.push(Arc::new(layer));
        server
    }
}

/// A server whose tool calls go through a stack of services. Cheap to clone, even if the handler is
/// not `Clone`; clones share everything.
pub struct LayeredServer<H, T> {
    pub(super) shared: Arc<SharedHandler<H>>,
    pub(super) service: T,
    /// The outermost comes first.
    pub(super) fronts: Vec<Arc<dyn Front>>,
}

impl<H, T> LayeredServer<H, T> {
    /// The handler.
    #[must_use]
    pub fn handler(&self) -> &H {
        &self.shared.handler
    }

    /// Like [`ServerExt::layered`], around the existing layers. All layers form one stack, so none
    /// of them takes another's error for the handler's.
    #[must_use]
    pub fn layered<L>(self, layer: L) -> LayeredServer<H, L::Service>
    where
        L: Layer<T>,
        L::Service: ToolService,
    {
        LayeredServer {
            service: layer.layer(self.service),
            shared: self.shared,
            fronts: self.fronts,
        }
    }

    /// Like [`ServerExt::idempotent`], around the existing layers.
    #[must_use]
    pub fn idempotent<S: Store>(
        self,
        layer: IdempotencyLayer<S>,
    ) -> LayeredServer<H, IdempotencyService<T, S>>
    where
        IdempotencyService<T, S>: ToolService,
    {
        let mut server = self.layered(layer.clone());
        server.fronts.insert(0, Arc::new(layer));
        server
    }
}

/// Why the layer did not answer a custom request.
pub(crate) enum Unanswered {
    /// It is for the handler.
    NotOurs(Box<(CustomRequest, RequestContext<RoleServer>)>),
    Refused(ErrorData),
}

/// What a layer adds to its server besides the service for calls.
pub(crate) trait Front: Send + Sync + 'static {
    /// In which form callers get refusals.
    fn refusal_form(&self) -> RefusalForm;

    fn advertise(&self, capabilities: &mut ServerCapabilities);

    fn describe(&self, tool: &mut Tool);

    /// Answers a request that is neither rmcp's nor the handler's.
    fn custom_request<'a>(
        &'a self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
        definitions: &'a dyn Definitions,
    ) -> BoxFuture<'a, Result<CustomResult, Unanswered>>;
}

impl<H, T: Clone> Clone for LayeredServer<H, T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            service: self.service.clone(),
            fronts: self.fronts.clone(),
        }
    }
}

impl<H, T> fmt::Debug for LayeredServer<H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayeredServer")
            .field("is_idempotent", &!self.fronts.is_empty())
            .finish_non_exhaustive()
    }
}
