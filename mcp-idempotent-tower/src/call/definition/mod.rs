//! Tool definitions, looked up once.

pub(crate) mod contract;
pub(crate) mod schema;

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock, Weak},
};

use futures_util::future::BoxFuture;
use rmcp::{
    RoleServer, ServerHandler,
    model::{PaginatedRequestParams, Tool},
    service::RequestContext,
};

/// Where tool definitions come from.
pub(crate) trait Definitions: Send + Sync {
    /// A definition that has been looked up already.
    fn cached(&self, name: &str) -> Option<Arc<Tool>>;

    /// Whether the stack still ends in the service that calls the handler, rather than in another service
    /// in its place.
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

/// How many definitions are kept. Beyond that, the server is asked each time.
const MOST_CACHED: usize = 4096;

/// How many pages of `tools/list` a look-up reads.
const MOST_PAGES: usize = 100;

/// A handler with the definitions of its tools, shared by the service that calls it and the server that
/// delegates to it.
pub(crate) struct SharedHandler<H> {
    pub(crate) handler: H,
    tools: RwLock<HashMap<Cow<'static, str>, Arc<Tool>>>,
    /// Held by the services that call the handler.
    callers: Weak<()>,
}

impl<H> SharedHandler<H> {
    pub(crate) fn new(handler: H, callers: &Arc<()>) -> Self {
        Self {
            handler,
            tools: RwLock::default(),
            callers: Arc::downgrade(callers),
        }
    }

    /// Replaces the definitions that have changed since they were kept.
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

impl<H: ServerHandler> Definitions for SharedHandler<H> {
    fn cached(&self, name: &str) -> Option<Arc<Tool>> {
        Self::cached(self, name)
    }

    fn are_of_a_handler_below(&self) -> bool {
        self.callers.strong_count() > 0
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

impl<H> fmt::Debug for SharedHandler<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedHandler").finish_non_exhaustive()
    }
}
