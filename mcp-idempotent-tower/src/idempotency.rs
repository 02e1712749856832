//! The handle that a server holds.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use mcp_idempotent_core::{Application, Engine, Policy, Store};

use crate::{
    builder::IdempotencyBuilder,
    executions::{Executions, StillRunning},
    options::ToolOptions,
    scope::{AuthorizeHook, ScopeSource},
};

/// What a server holds to have its tools deduplicated: the engine, and the rules of this server.
/// Cheap to clone; clones share everything.
///
/// [`#[idempotent]`](macro@crate::idempotent) reads it from `self.idempotency`.
pub struct Idempotency<S> {
    pub(crate) engine: Engine<S>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    settings: Settings,
    /// What is known of each annotated tool, by the address of its static options.
    tools: RwLock<HashMap<usize, AnnotatedTool>>,
    executions: Executions,
}

/// What an annotated tool's options come to on this server: found out once.
#[derive(Debug, Clone)]
pub(crate) struct AnnotatedTool {
    /// The server's policy, with the attribute's options over it.
    pub(crate) policy: Arc<Policy>,
    /// The key argument, where it is removed before the arguments are parsed.
    pub(crate) added_argument: Option<&'static str>,
}

#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) policy: Arc<Policy>,
    pub(crate) scope: ScopeSource,
    pub(crate) authorize: Option<AuthorizeHook>,
    pub(crate) refusals_as_results: bool,
    pub(crate) announce_replays: bool,
}

impl<S: Store> Idempotency<S> {
    /// With the default rules. The application's name is part of every record id: programs that
    /// share a store and must not share records need different names.
    pub fn new(application: impl Into<Application>, store: S) -> Self {
        Self::from_parts(Engine::new(application, store), Settings::default())
    }

    /// Starts building one with other rules.
    pub fn builder(application: impl Into<Application>, store: S) -> IdempotencyBuilder<S> {
        IdempotencyBuilder::new(application, store)
    }

    pub(crate) fn from_parts(engine: Engine<S>, settings: Settings) -> Self {
        Self {
            engine,
            shared: Arc::new(Shared {
                settings,
                tools: RwLock::default(),
                executions: Executions::default(),
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
    pub(crate) fn executions(&self) -> &Executions {
        &self.shared.executions
    }

    /// How many handlers run under a claim now, those whose caller is gone included.
    #[must_use]
    pub fn running(&self) -> usize {
        self.shared.executions.running()
    }

    /// Waits until no handler runs, those whose caller is gone included, and every record is
    /// written. It does not keep new calls from coming: stop the transport first.
    ///
    /// # Errors
    ///
    /// Handlers still run at the deadline. They go on; when the runtime ends first, a transaction is
    /// rolled back and a lease lapses into doubt.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), StillRunning> {
        self.shared.executions.drain(deadline).await
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    pub(crate) fn annotated(&self, options: &'static ToolOptions) -> AnnotatedTool {
        let address = std::ptr::from_ref(options).addr();
        let tools = &self.shared.tools;
        if let Some(tool) = tools
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&address)
        {
            return tool.clone();
        }
        let tool = AnnotatedTool {
            policy: Arc::new(options.over(&self.shared.settings.policy)),
            added_argument: options.added_argument(),
        };
        tools
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(address, tool.clone());
        tool
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
            .finish_non_exhaustive()
    }
}
