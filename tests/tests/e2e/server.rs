//! A server whose tools do what a test says.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::future::BoxFuture;
use mcp_idempotent_tests::database::Database;
use mcp_idempotent_tower::{AfterCommit, Idempotency, idempotent};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    handler::server::{tool::RequestState, wrapper::Parameters},
    model::{CallToolResponse, CallToolResult, ContentBlock, ErrorCode},
    service::RequestContext,
    tool, tool_handler, tool_router,
};
use serde_json::{Map, Value};

/// What the tools return.
pub(crate) type ToolResult = Result<CallToolResponse, ErrorData>;

/// What a handler is given beside the connection.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) n: i64,
    pub(crate) name: String,
    pub(crate) state: Option<String>,
    pub(crate) context: RequestContext<RoleServer>,
    /// How many handlers have started before this one.
    pub(crate) earlier: usize,
}

type Handler<D> = dyn for<'c> Fn(&'c mut <D as Database>::Connection, Call) -> BoxFuture<'c, ToolResult>
    + Send
    + Sync;

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
pub(crate) struct Arguments {
    n: i64,
    #[serde(default)]
    name: String,
    #[serde(flatten)]
    _other: Map<String, Value>,
}

pub(crate) struct Server<D: Database> {
    pub(crate) idempotency: Idempotency<D::Store>,
    handler: Arc<Handler<D>>,
    runs: Arc<AtomicUsize>,
    commits: Arc<AtomicUsize>,
}

impl<D: Database> Clone for Server<D> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            handler: Arc::clone(&self.handler),
            runs: Arc::clone(&self.runs),
            commits: Arc::clone(&self.commits),
        }
    }
}

impl<D: Database> Server<D> {
    pub(crate) fn new<H>(idempotency: Idempotency<D::Store>, handler: H) -> Self
    where
        H: for<'c> Fn(&'c mut D::Connection, Call) -> BoxFuture<'c, ToolResult>
            + Send
            + Sync
            + 'static,
    {
        Self {
            idempotency,
            handler: Arc::new(handler),
            runs: Arc::default(),
            commits: Arc::default(),
        }
    }

    /// The same tools over another engine, as another process would have them.
    pub(crate) fn over(&self, idempotency: Idempotency<D::Store>) -> Self {
        Self {
            idempotency,
            ..self.clone()
        }
    }

    /// How often a handler was started.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// How often a commit was heard of.
    pub(crate) fn commits(&self) -> usize {
        self.commits.load(Ordering::SeqCst)
    }

    async fn run(
        &self,
        connection: &mut D::Connection,
        Arguments { n, name, .. }: Arguments,
        RequestState(state): RequestState,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let call = Call {
            n,
            name,
            state,
            context,
            earlier: self.runs.fetch_add(1, Ordering::SeqCst),
        };
        let commits = Arc::clone(&self.commits);
        AfterCommit::current()?.run(async move {
            commits.fetch_add(1, Ordering::SeqCst);
        });
        (self.handler)(connection, call).await
    }
}

#[tool_router]
impl<D: Database> Server<D> {
    /// Without options.
    #[idempotent]
    #[tool]
    pub(crate) async fn work(
        &self,
        connection: &mut D::Connection,
        Parameters(arguments): Parameters<Arguments>,
        state: RequestState,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        self.run(connection, arguments, state, context).await
    }

    /// The same under another name.
    #[idempotent]
    #[tool]
    async fn other_work(
        &self,
        connection: &mut D::Connection,
        Parameters(arguments): Parameters<Arguments>,
        state: RequestState,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        self.run(connection, arguments, state, context).await
    }

    /// Takes calls with a key only.
    #[idempotent(key = required)]
    #[tool]
    async fn keyed_work(
        &self,
        connection: &mut D::Connection,
        Parameters(arguments): Parameters<Arguments>,
        state: RequestState,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        self.run(connection, arguments, state, context).await
    }

    /// Calls without a key run each time.
    #[idempotent(key = explicit)]
    #[tool]
    async fn work_without_key(
        &self,
        connection: &mut D::Connection,
        Parameters(arguments): Parameters<Arguments>,
        state: RequestState,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        self.run(connection, arguments, state, context).await
    }

    /// Takes a key among its arguments.
    #[idempotent(key_argument = "key")]
    #[tool]
    async fn work_by_argument(
        &self,
        connection: &mut D::Connection,
        Parameters(arguments): Parameters<Arguments>,
        state: RequestState,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        self.run(connection, arguments, state, context).await
    }

    /// Duplicates do not wait.
    #[idempotent(wait = reject)]
    #[tool]
    async fn impatient_work(
        &self,
        connection: &mut D::Connection,
        Parameters(arguments): Parameters<Arguments>,
        state: RequestState,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        self.run(connection, arguments, state, context).await
    }

    /// Duplicates wait for a moment.
    #[idempotent(wait = "200ms")]
    #[tool]
    async fn hasty_work(
        &self,
        connection: &mut D::Connection,
        Parameters(arguments): Parameters<Arguments>,
        state: RequestState,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        self.run(connection, arguments, state, context).await
    }

    /// Every error is recorded.
    #[idempotent(on_error = record)]
    #[tool]
    async fn work_that_records_errors(
        &self,
        connection: &mut D::Connection,
        Parameters(arguments): Parameters<Arguments>,
        state: RequestState,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        self.run(connection, arguments, state, context).await
    }

    /// No error is recorded.
    #[idempotent(on_error = release)]
    #[tool]
    async fn work_that_releases_errors(
        &self,
        connection: &mut D::Connection,
        Parameters(arguments): Parameters<Arguments>,
        state: RequestState,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        self.run(connection, arguments, state, context).await
    }

    /// The effect is committed together with an error result.
    #[idempotent(on_error = commit)]
    #[tool]
    async fn work_that_commits_errors(
        &self,
        connection: &mut D::Connection,
        Parameters(arguments): Parameters<Arguments>,
        state: RequestState,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        self.run(connection, arguments, state, context).await
    }
}

#[tool_handler]
impl<D: Database> ServerHandler for Server<D> {}

pub(crate) fn text(text: impl Into<String>) -> ToolResult {
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}

pub(crate) fn is_error(text: impl Into<String>) -> ToolResult {
    Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into())
}

pub(crate) fn protocol_error(message: &'static str) -> ToolResult {
    Err(ErrorData::new(ErrorCode(-32042), message, None))
}
