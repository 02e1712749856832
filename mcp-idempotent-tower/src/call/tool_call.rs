//! A tool call, as a tower request.

use std::{borrow::Cow, fmt, mem, sync::Arc};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Lent, RecordId, Scope, TransactionStore,
    engine::{Round, is_inside_transaction, outside_any_transaction},
};
use rmcp::{
    RoleServer,
    handler::server::tool::ToolCallContext,
    model::{CallToolRequestParams, JsonObject, RequestId, Tool},
    service::RequestContext,
};
use tokio_util::sync::CancellationToken;

use super::{
    after_commit::AfterCommit,
    attempt::Attempt,
    definition::{self, Definitions},
    entries::{Entries, Evidence},
    incoming::{Incoming, round},
    scope::{AuthorizeHook, Denied, NoScope, ScopeSource},
    tx::InLeaseMode,
};

/// In a request's extensions: a layer executes the call under this record. The attribute of a tool that its
/// server does not list finds it, because the layer could not know that the tool is annotated.
#[derive(Clone, Debug)]
pub(crate) struct UnderRecord {
    pub(crate) record: RecordId,
    pub(crate) tool: Cow<'static, str>,
}

/// One `tools/call`: the request of every service in a stack.
#[derive(Clone)]
#[non_exhaustive]
pub struct ToolCall {
    /// The name, the arguments, and what a further round carries. `meta` is empty: rmcp has moved it to
    /// [`RequestContext::meta`].
    pub params: CallToolRequestParams,
    /// The request: `_meta`, extensions (over HTTP the [`http::request::Parts`]), cancellation,
    /// and the peer.
    pub context: RequestContext<RoleServer>,
    definitions: Option<Arc<dyn Definitions>>,
    /// A layer above deduplicates it.
    is_protected: bool,
    /// The record that it has claimed.
    under: Option<RecordId>,
    entries: Option<Entries>,
}

impl ToolCall {
    /// A call without tool definitions, for tests of a service.
    #[must_use]
    pub const fn new(params: CallToolRequestParams, context: RequestContext<RoleServer>) -> Self {
        Self {
            params,
            context,
            definitions: None,
            is_protected: false,
            under: None,
            entries: None,
        }
    }

    pub(crate) fn of(
        definitions: Arc<dyn Definitions>,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Self {
        Self {
            definitions: Some(definitions),
            entries: Some(Entries::default()),
            ..Self::new(params, context)
        }
    }

    /// Moves a call out of the context that rmcp's router gives a tool.
    pub(crate) fn take<S>(context: &mut ToolCallContext<'_, S>) -> Self {
        let mut params = CallToolRequestParams::new(mem::take(&mut context.name));
        params.arguments = context.arguments.take();
        params.input_responses = context.input_responses.take();
        params.request_state = context.request_state.take();
        let peer = context.request_context.peer.clone();
        let empty = RequestContext::new(RequestId::Number(0), peer);
        Self::new(params, mem::replace(&mut context.request_context, empty))
    }

    /// The tool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.params.name
    }

    /// The tool's definition. The handler is asked once for each name, through `get_tool`, or through
    /// `tools/list` if it does not implement that. `None` if neither has the name.
    pub async fn tool(&self) -> Option<Arc<Tool>> {
        let definitions = self.definitions.as_ref()?;
        definition::definition(&**definitions, &self.params.name, &self.context).await
    }

    /// The tool's definition, if it has been looked up already.
    pub(crate) fn known_tool(&self) -> Option<Arc<Tool>> {
        self.definitions.as_ref()?.cached(&self.params.name)
    }

    /// Whether a layer above deduplicates it.
    pub(crate) const fn is_protected(&self) -> bool {
        self.is_protected
    }

    /// The call as a layer executes it.
    pub(crate) fn executed(mut self) -> Self {
        self.is_protected = true;
        if let Some(record) = self.under {
            let tool = self.params.name.clone();
            self.context.extensions.insert(UnderRecord { record, tool });
        }
        self.entries = Some(Entries::new_run(self.entries));
        self
    }

    /// Counts how often its handler is entered.
    pub(crate) const fn entries(&self) -> Option<&Entries> {
        self.entries.as_ref()
    }

    /// What a service that passes the call down may conclude from what was seen of it.
    pub(crate) fn evidence(&self) -> Evidence {
        let definitions = self.definitions.as_ref();
        Evidence {
            seen: self.entries.clone(),
            ends_in_handler: definitions.is_some_and(|of| of.are_of_a_handler_below()),
        }
    }

    /// Runs its handler as this attempt. The handler can take the attempt, and its cancellation token
    /// also fires when the lease is lost.
    pub(crate) fn attended<F>(
        mut self,
        attempt: Attempt,
        handler: impl FnOnce(Self) -> F + Send + 'static,
    ) -> BoxFuture<'static, F::Output>
    where
        F: Future + Send,
    {
        self.context.extensions.insert(attempt.clone());
        self.context.extensions.insert(InLeaseMode);
        self.context.extensions.remove::<AfterCommit>();
        let ct = self.own_token();
        // Calling the handler may panic too, before there is a future.
        let handler = attempt.during(ct, async move { handler(self).await });
        if is_inside_transaction() {
            // A tool in transaction mode calls this one, whose writes are not part of that transaction.
            return Box::pin(AfterCommit::none_during(outside_any_transaction(handler)));
        }
        Box::pin(handler)
    }

    /// Runs a handler that can take the transaction, from its context or its task.
    pub(crate) fn lent<S, F>(
        mut self,
        lent: Lent<S>,
        handler: impl FnOnce(Self) -> F + Send + 'static,
    ) -> BoxFuture<'static, F::Output>
    where
        S: TransactionStore,
        F: Future + Send,
    {
        self.context.extensions.insert(lent.clone());
        // Calling the handler may panic too, before there is a future.
        Box::pin(lent.during(async move { handler(self).await }))
    }
}

impl Incoming for ToolCall {
    fn own_token(&mut self) -> CancellationToken {
        self.context.ct = self.context.ct.child_token();
        self.context.ct.clone()
    }

    fn tool(&self) -> &str {
        &self.params.name
    }

    fn arguments(&self) -> Option<&JsonObject> {
        self.params.arguments.as_ref()
    }

    fn meta(&self) -> &JsonObject {
        &self.context.meta
    }

    fn round(&self) -> Round {
        let CallToolRequestParams {
            request_state,
            input_responses,
            ..
        } = &self.params;
        let responses = input_responses.as_ref().map(|responses| {
            let texts = responses.iter();
            texts.map(|(name, response)| (&**name, response.to_string()))
        });
        round(request_state.as_deref(), responses)
    }

    fn claimed(&mut self, record: RecordId) {
        self.under = Some(record);
    }

    fn offer(&mut self, after: AfterCommit) {
        self.context.extensions.insert(after);
    }

    fn remove_argument(&mut self, name: &str) {
        if let Some(arguments) = &mut self.params.arguments {
            arguments.remove(name);
        }
    }

    fn scope(&self, source: &ScopeSource) -> Result<Scope, NoScope> {
        source.resolve(&self.context)
    }

    fn authorize<'a>(
        &'a self,
        hook: &'a AuthorizeHook,
        tool: &'a str,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        (hook.0)(&self.context, tool)
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
