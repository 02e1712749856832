//! The handle that a server holds.

mod builder;
pub(crate) mod error;
mod operator;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_core::{
    Application, Engine, InvalidPolicy, Policy, PolicyOverride, PolicyUse, Store,
};
use rmcp::model::Tool;
use tokio::{sync::Notify, time::timeout};

pub use self::{builder::IdempotencyBuilder, error::BuildError};
use crate::{
    attribute::options::ToolOptions,
    call::{
        contract,
        on_replay::ReplayHook,
        reader::RefusalForm,
        run::unused::Unused,
        schema::{self, SchemaHash},
        scope::{AuthorizeHook, ScopeSource},
    },
};

/// Deduplicates a server's tool calls: the engine, and the server's settings. Cheap to clone; clones share
/// everything.
///
/// [`#[idempotent]`](macro@crate::idempotent) reads it from `self.idempotency`.
pub struct Idempotency<S> {
    pub(crate) engine: Engine<S>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    scope: ScopeSource,
    /// Each annotated tool that was called, by the address of its static options.
    tools: RwLock<HashMap<usize, AnnotatedTool>>,
    running: Running,
}

/// An annotated tool's policy on this server, worked out once.
#[derive(Debug, Clone)]
pub(crate) struct AnnotatedTool {
    /// The attribute's options over the server's policy, or why they cannot hold.
    pub(crate) policy: Result<Arc<Policy>, InvalidPolicy>,
    /// The key argument, if it has to be removed before the arguments are parsed.
    pub(crate) added_argument: Option<Arc<str>>,
    /// Its output schema, if results are checked against it.
    pub(crate) output_schema: Option<SchemaHash>,
    /// Notices that it does not use its transaction.
    pub(crate) unused: Arc<Unused>,
}

#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) policy: Arc<Policy>,
    pub(crate) authorize: Option<AuthorizeHook>,
    pub(crate) refusal_form: RefusalForm,
    pub(crate) announce_replays: bool,
    pub(crate) on_replay: Option<ReplayHook>,
    pub(crate) check_output_schemas: bool,
}

impl<S: Store> Idempotency<S> {
    /// With the default settings, for a server with one caller: the process that started it and speaks to
    /// it over stdio (see [`with_one_caller`](IdempotencyBuilder::with_one_caller)).
    ///
    /// The application's name is part of every record id. Programs that share a store but must not share
    /// records need different names.
    ///
    /// # Errors
    ///
    /// The store is shared over a network, like Postgres, so every machine may have such a caller. Name this
    /// one with [`with_fixed_scope`](IdempotencyBuilder::with_fixed_scope).
    pub fn for_stdio(application: impl Into<Application>, store: S) -> Result<Self, BuildError> {
        Self::builder(application, store).with_one_caller().build()
    }

    /// Starts building one with other callers or settings. The application's name is part of every record
    /// id, as with [`for_stdio`](Self::for_stdio).
    pub fn builder(application: impl Into<Application>, store: S) -> IdempotencyBuilder<S> {
        IdempotencyBuilder::new(application, store)
    }

    pub(crate) fn from_parts(engine: Engine<S>, scope: ScopeSource, settings: Settings) -> Self {
        Self {
            engine,
            shared: Arc::new(Shared {
                settings,
                scope,
                tools: RwLock::default(),
                running: Running::default(),
            }),
        }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        self.engine.store()
    }

    /// The engine.
    #[must_use]
    pub const fn engine(&self) -> &Engine<S> {
        &self.engine
    }

    /// Asks the store whether the application's records were made under this server's secret (or under
    /// none, if it has none). Call it at start-up, so that callers are not the first to find out. It takes
    /// at most 10 seconds.
    ///
    /// # Errors
    ///
    /// As [`Engine::verify_secret`]. Calls are refused likewise. The error says what to do.
    pub async fn verify_secret(&self) -> Result<(), mcp_idempotent_core::SecretError> {
        self.engine.verify_secret().await
    }
}

impl<S> Idempotency<S> {
    /// How many handlers are running under a claim, including those whose caller is gone.
    #[must_use]
    pub fn running(&self) -> usize {
        self.shared.running.count()
    }

    /// Waits until no handler is running, including those whose caller is gone, and every record is
    /// written. It does not stop new calls: stop the transport first.
    ///
    /// # Errors
    ///
    /// Handlers are still running at the deadline. They go on. If the runtime ends before they do, a
    /// transaction is rolled back, and a call in lease mode is in doubt once its lease has expired.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), StillRunning> {
        self.shared.running.drain(deadline).await
    }

    /// Counts one running handler until the returned value is dropped.
    pub(crate) fn one_more(&self) -> One {
        self.shared.running.one_more()
    }

    pub(crate) fn scope(&self) -> &ScopeSource {
        &self.shared.scope
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.settings
    }
}

impl<S: Store> Idempotency<S> {
    /// An annotated tool on this server. `name` is the tool's name, for messages.
    pub(crate) fn annotated(&self, options: &'static ToolOptions, name: &str) -> AnnotatedTool {
        let address = std::ptr::from_ref(options).addr();
        let tools = &self.shared.tools;
        if let Some(tool) = tools
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&address)
        {
            return tool.clone();
        }
        let policy = self.policy_of(name, &options.policy, options.policy_use());
        if let Err(error) = &policy {
            tracing::error!(%error, "every call of this tool is refused");
        }
        if let Some(pointer) = options.unknown_argument() {
            tracing::error!(
                tool = name,
                pointer,
                "the options of this tool name an argument that it does not have"
            );
        }
        let tool = AnnotatedTool {
            policy: policy.map(Arc::new),
            added_argument: options.added_argument().map(Arc::from),
            output_schema: options
                .output_schema
                .filter(|_| self.settings().check_output_schemas)
                .map(|schema| SchemaHash::of(&schema())),
            unused: Unused::by(name),
        };
        tools
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(address, tool.clone());
        tool
    }

    /// A tool's policy over the server's, checked.
    fn policy_of(
        &self,
        tool: &str,
        said: &PolicyOverride,
        of: PolicyUse,
    ) -> Result<Policy, InvalidPolicy> {
        let limit = self.store().transaction_limit();
        said.for_tool(&self.shared.settings.policy, of, limit)
            .and_then(|policy| self.engine.check_policy(&policy).map(|()| policy))
            .map_err(|error| error.of(format_args!("the tool `{tool}`")))
    }

    /// Checks [annotated](macro@crate::idempotent) tools against the server's policy and its store, so that
    /// a tool that cannot work is found when the server starts. Without this check it is found at the
    /// tool's first call, and all its calls are refused. Pass all tools of the router; those without an
    /// annotation are skipped.
    ///
    /// Options that can never hold, such as a heartbeat longer than half its lease, do not compile. This
    /// check covers what depends on the server: a lease against the store's limit on transactions, and the
    /// attribute's options against the server's policy. It also finds `ignore` and `key_argument` that name no
    /// argument of the tool. (Without this check, those are logged at the tool's first call.)
    ///
    /// ```
    /// # use mcp_idempotent_tower::{BuildError, Idempotency, MemoryStore, idempotent};
    /// # use rmcp::{tool, tool_router};
    /// # #[derive(Clone)] struct Mailer { idempotency: Idempotency<MemoryStore> }
    /// # #[tool_router(server_handler)] impl Mailer {
    /// #     #[idempotent(on_error = in_doubt)]
    /// #     #[tool] fn send(&self) {}
    /// # }
    /// impl Mailer {
    ///     fn new(idempotency: Idempotency<MemoryStore>) -> Result<Self, BuildError> {
    ///         idempotency.check_tools(&Self::tool_router().list_all())?;
    ///         Ok(Self { idempotency })
    ///     }
    /// }
    /// # assert!(Mailer::new(Idempotency::for_stdio("mailer", MemoryStore::new()).unwrap()).is_ok());
    /// ```
    ///
    /// # Errors
    ///
    /// A tool's policy cannot hold, for one of the reasons that [`Policy::check`] lists; two tools are recorded
    /// under one name; or an option names an argument that the tool does not have. The message names the tool.
    pub fn check_tools<'a>(
        &self,
        tools: impl IntoIterator<Item = &'a Tool>,
    ) -> Result<(), BuildError> {
        let mut recorded_as = HashSet::new();
        for tool in tools {
            let options = contract::options_of(tool);
            let earlier = options
                .as_ref()
                .and_then(|of| of.policy.also_known_as.as_deref());
            if !recorded_as.insert(earlier.unwrap_or(&tool.name).to_owned()) {
                return Err(BuildError::of_one_name(earlier.unwrap_or(&tool.name)));
            }
            let Some(options) = options else {
                continue;
            };
            self.policy_of(&tool.name, &options.policy, options.policy_use())?;
            if let Some(pointer) = schema::unknown_argument(&tool.input_schema, &options.policy) {
                return Err(BuildError::new(format!(
                    "the tool `{}` has no argument `{pointer}`, which its options name",
                    tool.name
                )));
            }
        }
        Ok(())
    }
}

impl<S> Clone for Idempotency<S> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("engine", &self.engine)
            .field("settings", &self.shared.settings)
            .field("scope", &self.shared.scope)
            .finish_non_exhaustive()
    }
}

/// Counts the handlers that run under a claim, including those whose caller is gone.
#[derive(Clone, Default)]
struct Running(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    running: AtomicUsize,
    none: Notify,
}

impl Running {
    fn one_more(&self) -> One {
        self.0.running.fetch_add(1, Ordering::SeqCst);
        One(Arc::clone(&self.0))
    }

    fn count(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    async fn drain(&self, within: Duration) -> Result<(), StillRunning> {
        let drained = timeout(within, async {
            loop {
                // Listen before counting, or the last handler could end unheard in between.
                let mut none = std::pin::pin!(self.0.none.notified());
                none.as_mut().enable();
                if self.count() == 0 {
                    return;
                }
                none.await;
            }
        });
        match drained.await {
            Ok(()) => Ok(()),
            Err(_) => match self.count() {
                0 => Ok(()),
                running => Err(StillRunning { running }),
            },
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Running").field(&self.count()).finish()
    }
}

/// One running handler. Dropped when the handler has ended and its record is written.
#[derive(Debug)]
pub(crate) struct One(Arc<Count>);

impl Drop for One {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.none.notify_waiters();
        }
    }
}

/// Handlers were still running at the deadline. They go on until the runtime ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StillRunning {
    /// How many.
    pub running: usize,
}

impl fmt::Display for StillRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tool calls still ran at the deadline", self.running)
    }
}

impl std::error::Error for StillRunning {}
