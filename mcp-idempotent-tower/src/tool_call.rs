//! A tool call as a tower request.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock, Weak},
};

use futures_util::future::BoxFuture;
use rmcp::{
    RoleServer, ServerHandler,
    model::{CallToolRequestParams, PaginatedRequestParams, Tool},
    service::RequestContext,
};

use crate::{
    call::Call,
    observed::{Observation, Observed},
};

/// One `tools/call`: the request of every service in a stack.
#[derive(Clone)]
#[non_exhaustive]
pub struct ToolCall {
    /// Name, arguments, and what a further round carries. `meta` is empty: rmcp has moved it to
    /// [`RequestContext::meta`].
    pub params: CallToolRequestParams,
    /// The request: `_meta`, extensions (over HTTP the [`http::request::Parts`]), cancellation,
    /// and the peer.
    pub context: RequestContext<RoleServer>,
    definitions: Option<Arc<dyn Definitions>>,
    /// A layer above has it in hand.
    is_protected: bool,
    observed: Option<Observed>,
}

impl ToolCall {
    /// A call that knows no tool definitions, for tests of a service.
    #[must_use]
    pub const fn new(params: CallToolRequestParams, context: RequestContext<RoleServer>) -> Self {
        Self {
            params,
            context,
            definitions: None,
            is_protected: false,
            observed: None,
        }
    }

    pub(crate) fn of(
        definitions: Arc<dyn Definitions>,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Self {
        Self {
            params,
            context,
            definitions: Some(definitions),
            is_protected: false,
            observed: Some(Observed::default()),
        }
    }

    /// The tool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.params.name
    }

    /// The tool's definition. The handler is asked once for each name: by `get_tool`, and where it
    /// does not implement that, by `tools/list`. `None` where neither has the name.
    pub async fn tool(&self) -> Option<Arc<Tool>> {
        let definitions = self.definitions.as_ref()?;
        definition(&**definitions, &self.params.name, &self.context).await
    }

    /// The tool's definition where it was looked up before.
    pub(crate) fn known_tool(&self) -> Option<Arc<Tool>> {
        self.definitions.as_ref()?.cached(&self.params.name)
    }

    /// Whether a layer above deduplicates it.
    pub(crate) const fn is_protected(&self) -> bool {
        self.is_protected
    }

    /// What its handler is seen by.
    pub(crate) const fn observed(&self) -> Option<&Observed> {
        self.observed.as_ref()
    }

    /// What whoever sends it down may conclude from what happened to it.
    pub(crate) fn observation(&self) -> Observation {
        let definitions = self.definitions.as_ref();
        Observation {
            seen: self.observed.clone(),
            ends_in_handler: definitions.is_some_and(|of| of.are_of_a_handler_below()),
        }
    }

    /// Apart, by moving: the layer that does so has the call in hand.
    pub(crate) fn into_call(self) -> (Call, Rest) {
        let CallToolRequestParams {
            meta,
            name,
            arguments,
            input_responses,
            request_state,
            ..
        } = self.params;
        let call = Call {
            name,
            arguments,
            input_responses,
            request_state,
            context: self.context,
        };
        let rest = Rest {
            definitions: self.definitions,
            meta,
            observed: self.observed,
        };
        (call, rest)
    }
}

/// What a [`Call`] does not hold of a [`ToolCall`].
pub(crate) struct Rest {
    definitions: Option<Arc<dyn Definitions>>,
    meta: Option<rmcp::model::RequestMetaObject>,
    observed: Option<Observed>,
}

impl Rest {
    /// Together again, to be executed.
    pub(crate) fn with(self, call: Call) -> ToolCall {
        let mut params = CallToolRequestParams::new(call.name);
        params.meta = self.meta;
        params.arguments = call.arguments;
        params.input_responses = call.input_responses;
        params.request_state = call.request_state;
        ToolCall {
            params,
            context: call.context,
            definitions: self.definitions,
            is_protected: true,
            observed: Some(Observed::execution(self.observed)),
        }
    }
}

impl fmt::Debug for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments may hold secrets.
        f.debug_struct("ToolCall")
            .field("tool", &self.params.name)
            .field("id", &self.context.id)
            .finish_non_exhaustive()
    }
}

/// Where tool definitions come from.
pub(crate) trait Definitions: Send + Sync {
    /// One that was looked up before.
    fn cached(&self, name: &str) -> Option<Arc<Tool>>;

    /// Whether the services around the handler still have the one that calls it, rather than one
    /// of somebody else's in its place.
    fn are_of_a_handler_below(&self) -> bool;

    /// Asks the handler.
    fn look_up<'a>(
        &'a self,
        name: &'a str,
        context: &'a RequestContext<RoleServer>,
    ) -> BoxFuture<'a, Option<Arc<Tool>>>;
}

pub(crate) async fn definition(
    definitions: &dyn Definitions,
    name: &str,
    context: &RequestContext<RoleServer>,
) -> Option<Arc<Tool>> {
    match definitions.cached(name) {
        Some(tool) => Some(tool),
        None => definitions.look_up(name, context).await,
    }
}

/// How many definitions are kept. A server with more of them, or with another one for each caller,
/// is asked each time.
const MOST_CACHED: usize = 4096;

/// How many pages of `tools/list` a look-up reads.
const MOST_PAGES: usize = 100;

/// A handler, shared by the service that calls it and the server that delegates to it, with its
/// tools' definitions.
pub(crate) struct Shared<H> {
    pub(crate) handler: H,
    tools: RwLock<HashMap<Cow<'static, str>, Arc<Tool>>>,
    /// Held by the services that call the handler.
    door: Weak<()>,
}

impl<H> Shared<H> {
    pub(crate) fn new(handler: H, door: &Arc<()>) -> Self {
        Self {
            handler,
            tools: RwLock::default(),
            door: Arc::downgrade(door),
        }
    }

    /// A list that passes by replaces the definitions that changed.
    pub(crate) fn refresh(&self, listed: &[Tool]) {
        let changed = |tool: &&Tool| {
            self.cached(&tool.name)
                .is_some_and(|cached| *cached != **tool)
        };
        for tool in listed.iter().filter(changed) {
            self.keep(tool.clone());
        }
    }

    fn cached(&self, name: &str) -> Option<Arc<Tool>> {
        self.tools
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    fn keep(&self, tool: Tool) -> Arc<Tool> {
        let tool = Arc::new(tool);
        let mut tools = self.tools.write().unwrap_or_else(PoisonError::into_inner);
        if tools.len() < MOST_CACHED || tools.contains_key(&tool.name) {
            tools.insert(tool.name.clone(), Arc::clone(&tool));
        }
        tool
    }
}

impl<H: ServerHandler> Definitions for Shared<H> {
    fn cached(&self, name: &str) -> Option<Arc<Tool>> {
        Self::cached(self, name)
    }

    fn are_of_a_handler_below(&self) -> bool {
        self.door.strong_count() > 0
    }

    fn look_up<'a>(
        &'a self,
        name: &'a str,
        context: &'a RequestContext<RoleServer>,
    ) -> BoxFuture<'a, Option<Arc<Tool>>> {
        Box::pin(async move {
            if let Some(tool) = self.handler.get_tool(name) {
                return Some(self.keep(tool));
            }
            let mut request: Option<PaginatedRequestParams> = None;
            for _ in 0..MOST_PAGES {
                let page = self
                    .handler
                    .list_tools(request, context.clone())
                    .await
                    .ok()?;
                if let Some(tool) = page.tools.into_iter().find(|tool| tool.name == name) {
                    return Some(self.keep(tool));
                }
                request =
                    Some(PaginatedRequestParams::default().with_cursor(Some(page.next_cursor?)));
            }
            None
        })
    }
}

impl<H> fmt::Debug for Shared<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
