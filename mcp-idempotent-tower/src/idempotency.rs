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
    /// The policy of each annotated tool, by the address of its static options.
    policies: RwLock<HashMap<usize, Arc<Policy>>>,
    executions: Executions,
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
                policies: RwLock::default(),
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

    /// The policy of an annotated tool: the server's, with the attribute's options over it.
    pub(crate) fn policy_of(&self, options: &'static ToolOptions) -> Arc<Policy> {
        let address = std::ptr::from_ref(options).addr();
        let policies = &self.shared.policies;
        if let Some(policy) = policies
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&address)
        {
            return Arc::clone(policy);
        }
        let policy = Arc::new(options.over(&self.shared.settings.policy));
        policies
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(address, Arc::clone(&policy));
        policy
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
