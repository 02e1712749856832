//! The handle that a server holds.

mod builder;
mod operator;
mod running;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use mcp_idempotent_core::{
    Application, Engine, InvalidPolicy, OnError, Policy, PolicyOverride, PolicyUse, Store,
};
use rmcp::model::Tool;

use self::running::Running;
pub use self::{
    builder::{BuildError, IdempotencyBuilder},
    running::StillRunning,
};
use crate::call::contract;
use crate::{
    attribute::options::{Mode, ToolOptions},
    call::scope::{AuthorizeHook, ScopeSource},
    wire,
};

/// What a server holds to have its tools deduplicated: the engine, and the rules of this server.
/// Cheap to clone; clones share everything.
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
    /// What is known of each annotated tool, by the address of its static options.
    tools: RwLock<HashMap<usize, AnnotatedTool>>,
    running: Running,
}

/// What an annotated tool's options come to on this server: found out once.
#[derive(Debug, Clone)]
pub(crate) struct AnnotatedTool {
    /// The server's policy, with the attribute's options over it; or why that cannot hold.
    pub(crate) policy: Result<Arc<Policy>, InvalidPolicy>,
    /// The key argument, where it is removed before the arguments are parsed.
    pub(crate) added_argument: Option<Arc<str>>,
}

#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) policy: Arc<Policy>,
    pub(crate) authorize: Option<AuthorizeHook>,
    pub(crate) refusals_as_results: bool,
    pub(crate) announce_replays: bool,
}

impl<S: Store> Idempotency<S> {
    /// With the default rules, for a server with one caller: the process that started it and speaks
    /// to it over stdio, as [`with_one_caller`](IdempotencyBuilder::with_one_caller) says.
    ///
    /// The application's name is part of every record id: programs that share a store and must not
    /// share records need different names.
    ///
    /// # Errors
    ///
    /// The store is shared over a network, as Postgres is, and has such a caller on every machine.
    /// Name this server's with [`with_fixed_scope`](IdempotencyBuilder::with_fixed_scope).
    pub fn for_stdio(application: impl Into<Application>, store: S) -> Result<Self, BuildError> {
        Self::builder(application, store).with_one_caller().build()
    }

    /// Starts building one with other callers or rules. The application's name is part of every
    /// record id, as with [`for_stdio`](Self::for_stdio).
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

    /// Asks the store whether this server's secret, or its having none, is the application's: at
    /// start-up, so that it is not the callers who find out. It takes at most 10 seconds.
    ///
    /// # Errors
    ///
    /// As [`Engine::verify_secret`]. Calls are refused likewise.
    pub async fn verify_secret(&self) -> Result<(), mcp_idempotent_core::Refusal> {
        self.engine.verify_secret().await
    }
}

impl<S> Idempotency<S> {
    /// How many handlers run under a claim now, those whose caller is gone included.
    #[must_use]
    pub fn running(&self) -> usize {
        self.shared.running.count()
    }

    /// Waits until no handler runs, those whose caller is gone included, and every record is
    /// written. It does not keep new calls from coming: stop the transport first.
    ///
    /// # Errors
    ///
    /// Handlers still run at the deadline. They go on; when the runtime ends first, a transaction is
    /// rolled back and a lease lapses into doubt.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), StillRunning> {
        self.shared.running.drain(deadline).await
    }

    /// Counts one handler that runs, until the answer is dropped.
    pub(crate) fn one_more(&self) -> running::One {
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
    /// What is known of an annotated tool. `name` is that of the call that asks.
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
        let tool = AnnotatedTool {
            policy: policy.map(Arc::new),
            added_argument: options.added_argument().map(Arc::from),
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
            .map_err(|error| error.of(format_args!("the tool `{tool}`")))
    }

    /// Checks the [annotated](macro@crate::idempotent) tools among these against the server's policy
    /// and its store, so that one that cannot work is found when the server starts. Otherwise it is
    /// found at the tool's first call, and each of its calls is refused. Pass all tools of the
    /// router; the others are skipped.
    ///
    /// What an attribute says that can never hold, such as a heartbeat longer than half its lease, does
    /// not compile. What is left for this check depends on the server: a lease against the store's
    /// limit on transactions, and what the attribute says against what the server's policy says.
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
    /// A tool's policy cannot hold, for one of the reasons that [`Policy::check`] lists. The message
    /// names the tool.
    pub fn check_tools<'a>(
        &self,
        tools: impl IntoIterator<Item = &'a Tool>,
    ) -> Result<(), BuildError> {
        for tool in tools {
            let contract = tool.meta.as_ref().and_then(|meta| meta.get(wire::CONTRACT));
            let Some((contract, mode)) = contract.and_then(|it| Some((it, contract::mode_of(it)?)))
            else {
                continue;
            };
            let mut options = ToolOptions {
                mode,
                policy: contract::read_contract(contract),
                ..ToolOptions::LEASE
            };
            if mode == Mode::Lease {
                // A contract does not say which, and the macro takes no other.
                options.policy.on_error = Some(OnError::InDoubt);
            }
            self.policy_of(&tool.name, &options.policy, options.policy_use())?;
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
