//! Building an [`Idempotency`].

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use mcp_idempotent_core::{
    Application, Policy, PolicyUse, Scope, Secret, Store, engine::EngineBuilder,
};
use rmcp::{RoleServer, service::RequestContext};

use super::{Idempotency, Settings, error::BuildError};
use crate::call::{
    on_replay::{ReplayHook, ReplayedCall},
    reader::RefusalForm,
    scope::{AuthorizeHook, Denied, Said, ScopeSource},
};

/// Builds an [`Idempotency`]. You must say who calls the server, with one of the `…scope…` methods or
/// [`with_one_caller`](Self::with_one_caller). Everything else has a default.
pub struct IdempotencyBuilder<S> {
    engine: EngineBuilder<S>,
    settings: Settings,
    scope: Vec<Said>,
}

impl<S: Store> IdempotencyBuilder<S> {
    pub(crate) fn new(application: impl Into<Application>, store: S) -> Self {
        Self {
            engine: mcp_idempotent_core::Engine::builder(application, store),
            settings: Settings::default(),
            scope: Vec::new(),
        }
    }

    /// Resolves the scope of a call from the request, for example from what an authentication layer left
    /// in the [`http::request::Parts`]. Return something that survives a token refresh: the subject, never
    /// the token or the session. A denial is sent to the caller, and nothing is executed.
    #[must_use]
    pub fn with_scope_from(
        self,
        resolver: impl Fn(&RequestContext<RoleServer>) -> Result<Scope, Denied> + Send + Sync + 'static,
    ) -> Self {
        let source = ScopeSource::Resolver(Arc::new(resolver));
        self.say("with_scope_from", source)
    }

    /// As [`with_scope_from`](Self::with_scope_from), for calls over HTTP, from the request's head and what
    /// an authentication layer left in its extensions. Other calls that would be deduplicated are
    /// refused, unless [`with_one_caller`](Self::with_one_caller) is also set.
    ///
    /// ```
    /// # use mcp_idempotent_tower::{Denied, Idempotency, MemoryStore, Scope};
    /// #[derive(Clone)]
    /// struct Subject(String); // left there by an authentication layer
    ///
    /// let idempotency = Idempotency::builder("billing", MemoryStore::new())
    ///     .with_scope_from_http(|parts| match parts.extensions.get::<Subject>() {
    ///         Some(Subject(subject)) => Ok(Scope::new(subject.as_str())),
    ///         None => Err(Denied::new("sign in first")),
    ///     })
    ///     .build()?;
    /// # Ok::<(), mcp_idempotent_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn with_scope_from_http(
        self,
        resolver: impl Fn(&http::request::Parts) -> Result<Scope, Denied> + Send + Sync + 'static,
    ) -> Self {
        let source = ScopeSource::OverHttp(Arc::new(resolver));
        self.say("with_scope_from_http", source)
    }

    /// Declares that this server has one caller outside HTTP: the process that started it, over stdio. The
    /// caller's scope is the same after every restart. **A TCP or Unix socket has many callers, and so may a
    /// pipe within a process. With this setting they get each other's results.**
    ///
    /// Calls over HTTP that would be deduplicated are refused, unless
    /// [`with_scope_from_http`](Self::with_scope_from_http) is also set.
    #[must_use]
    pub fn with_one_caller(self) -> Self {
        self.say("with_one_caller", ScopeSource::OneCaller)
    }

    /// One scope for every call: this server acts for one principal. Servers that share a store and
    /// act for different ones need different scopes.
    #[must_use]
    pub fn with_fixed_scope(self, scope: impl Into<Arc<str>>) -> Self {
        self.say("with_fixed_scope", ScopeSource::Fixed(Scope::new(scope)))
    }

    /// Lets all callers share one scope. **A caller that knows or guesses another caller's key, or sends
    /// equal arguments without a key, gets the other caller's result.**
    #[must_use]
    pub fn with_scope_shared_by_all_callers(self) -> Self {
        let source = ScopeSource::Fixed(Scope::new("shared by all callers"));
        self.say("with_scope_shared_by_all_callers", source)
    }

    fn say(mut self, with: &'static str, source: ScopeSource) -> Self {
        self.scope.push(Said { with, source });
        self
    }

    /// Asks before every new call, replay and join (again when it wakes) whether the caller may
    /// call the tool. Checks inside a handler do not protect replays.
    #[must_use]
    pub fn with_authorize(
        mut self,
        hook: impl for<'a> Fn(
            &'a RequestContext<RoleServer>,
            &'a str,
        ) -> Pin<Box<dyn Future<Output = Result<(), Denied>> + Send + 'a>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.settings.authorize = Some(AuthorizeHook(Arc::new(hook)));
        self
    }

    /// The policy of all tools, except where a tool sets something else.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.settings.policy = Arc::new(policy);
        self
    }

    /// Turns record ids and fingerprints into keyed hashes, so that low-entropy arguments cannot be
    /// guessed from a dump of the store. All processes that share the store need the same secret;
    /// one that has another, or none, refuses its calls:
    /// [`Idempotency::verify_secret`](crate::Idempotency::verify_secret).
    #[must_use]
    pub fn with_secret(mut self, secret: Secret) -> Self {
        self.engine = self.engine.with_secret(secret);
        self
    }

    /// Replaces a secret while calls are served. This is the previous one, or `None` if there was none.
    /// Processes that only know the previous one may keep serving meanwhile. The steps are in
    /// `docs/operating.md`, "Introducing or changing the secret"; the cost is in
    /// [`EngineBuilder::with_previous_secret`](mcp_idempotent_core::engine::EngineBuilder::with_previous_secret).
    #[must_use]
    pub fn with_previous_secret(mut self, previous: impl Into<Option<Secret>>) -> Self {
        self.engine = self.engine.with_previous_secret(previous);
        self
    }

    /// Renames an application while calls are served. This is its previous name. See
    /// [`EngineBuilder::with_previous_application`](mcp_idempotent_core::engine::EngineBuilder::with_previous_application).
    #[must_use]
    pub fn with_previous_application(mut self, previous: impl Into<Application>) -> Self {
        self.engine = self.engine.with_previous_application(previous);
        self
    }

    /// How long records made under the previous secret are kept: the longest retention of any tool,
    /// tombstones included. Default: 24 hours.
    #[must_use]
    pub fn with_rotation_period(mut self, period: Duration) -> Self {
        self.engine = self.engine.with_rotation_period(period);
        self
    }

    /// How many calls may wait for a running one, per key and in this process.
    #[must_use]
    pub fn with_waiter_limits(mut self, per_key: usize, per_process: usize) -> Self {
        self.engine = self.engine.with_waiter_limits(per_key, per_process);
        self
    }

    /// Limits how many new calls each scope may begin in each `period`, over all processes that share the
    /// store. What exactly it bounds is described at
    /// [`EngineBuilder::with_new_calls_per_scope`](mcp_idempotent_core::engine::EngineBuilder::with_new_calls_per_scope).
    #[must_use]
    pub fn with_new_calls_per_scope(mut self, most: u32, period: Duration) -> Self {
        self.engine = self.engine.with_new_calls_per_scope(most, period);
        self
    }

    /// In which form refusals are sent. Default: [`RefusalForm::ByKeyMaker`], in the form that reaches whoever
    /// made the call's key.
    #[must_use]
    pub fn with_refusal_form(mut self, form: RefusalForm) -> Self {
        self.settings.refusal_form = form;
        self
    }

    /// Adds a content block to replays that says so: hosts do not show `_meta` to the model.
    #[must_use]
    pub fn with_announced_replays(mut self, yes: bool) -> Self {
        self.settings.announce_replays = yes;
        self
    }

    /// Tells `hook` of each call that gets the result of another one, to count or to log it. It is called before
    /// the caller gets its answer, so it must not block. A panic in it is logged. It is not told of the rare call
    /// that ran in vain, because another process had committed first.
    ///
    /// ```
    /// # use mcp_idempotent_tower::{Idempotency, MemoryStore};
    /// let idempotency = Idempotency::builder("billing", MemoryStore::new())
    ///     .with_one_caller()
    ///     .with_on_replay(|call| tracing::info!(tool = call.tool, scope = ?call.scope, "a retry"))
    ///     .build()?;
    /// # Ok::<(), mcp_idempotent_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn with_on_replay(
        mut self,
        hook: impl Fn(&ReplayedCall<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.settings.on_replay = Some(ReplayHook(Arc::new(hook)));
        self
    }

    /// Keeps a hash of the tool's output schema with each result. After a deployment that changed the schema,
    /// a replay of an older result would fail in clients that validate results. With this setting it is
    /// refused instead, with an error that says that the call was committed and contains its result.
    #[must_use]
    pub fn with_output_schemas_checked(mut self, yes: bool) -> Self {
        self.settings.check_output_schemas = yes;
        self
    }

    /// Checks the settings and builds.
    ///
    /// # Errors
    ///
    /// Nothing says who calls the server, two settings about it contradict each other, or
    /// [`with_one_caller`](Self::with_one_caller) is used with a store that is
    /// [shared over a network](mcp_idempotent_core::store::Reach). Or the policy cannot hold, for one of
    /// the reasons that [`Policy::check`] lists, or because it minds rotated keys while a secret is replaced.
    pub fn build(self) -> Result<Idempotency<S>, BuildError> {
        let engine = self.engine.build();
        let limit = engine.store().transaction_limit();
        self.settings
            .policy
            .check(PolicyUse::Server, limit)
            .and_then(|()| engine.check_policy(&self.settings.policy))
            .map_err(|error| error.of("the server's policy"))?;
        let scope = ScopeSource::settle(self.scope, engine.store().reach())?;
        Ok(Idempotency::from_parts(engine, scope, self.settings))
    }
}

impl<S> fmt::Debug for IdempotencyBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyBuilder")
            .field("settings", &self.settings)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}
