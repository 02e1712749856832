//! Building an [`Idempotency`].

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use mcp_idempotent_core::{
    Application, OnDoubt, Policy, Scope, Secret, Store, Wait, canonical::is_json_pointer,
    engine::EngineBuilder,
};
use rmcp::{RoleServer, service::RequestContext};

use crate::{
    idempotency::{Idempotency, Settings},
    scope::{AuthorizeHook, Denied, ScopeSource},
};

/// Builds an [`Idempotency`]; what is not said keeps its default.
pub struct IdempotencyBuilder<S> {
    engine: EngineBuilder<S>,
    settings: Settings,
}

/// The settings contradict each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildError {
    message: String,
}

impl BuildError {
    pub(crate) const fn new(message: String) -> Self {
        Self { message }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BuildError {}

impl<S: Store> IdempotencyBuilder<S> {
    pub(crate) fn new(application: impl Into<Application>, store: S) -> Self {
        Self {
            engine: mcp_idempotent_core::Engine::builder(application, store),
            settings: Settings::default(),
        }
    }

    /// Resolves whose key it is from the request, for example from what an authentication layer
    /// left in the [`http::request::Parts`]. Return what survives a token refresh: the subject,
    /// never the token or the session. A refusal is sent to the caller; nothing is executed.
    #[must_use]
    pub fn with_scope_from(
        mut self,
        resolver: impl Fn(&RequestContext<RoleServer>) -> Result<Scope, Denied> + Send + Sync + 'static,
    ) -> Self {
        self.settings.scope = ScopeSource::Resolver(Arc::new(resolver));
        self
    }

    /// As [`with_scope_from`](Self::with_scope_from), for calls over HTTP, from the request's head and what
    /// an authentication layer left in its extensions; a call over stdio keeps the scope of stdio.
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
        mut self,
        resolver: impl Fn(&http::request::Parts) -> Result<Scope, Denied> + Send + Sync + 'static,
    ) -> Self {
        self.settings.scope = ScopeSource::HttpResolver(Arc::new(resolver));
        self
    }

    /// One scope for every call: this server acts for one principal.
    #[must_use]
    pub fn with_fixed_scope(mut self, scope: impl Into<Arc<str>>) -> Self {
        self.settings.scope = ScopeSource::Fixed(Scope::new(scope));
        self
    }

    /// Lets all callers share one scope. **A caller that knows or guesses another one's key, or
    /// sends equal arguments without a key, gets that one's result.**
    #[must_use]
    pub fn with_scope_shared_by_all_callers(self) -> Self {
        self.with_fixed_scope("shared by all callers")
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

    /// The policy of tools that say nothing else.
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

    /// Replaces a secret while calls are served: this is the one before, or `None` where there was
    /// none. Processes with the previous one alone may serve meanwhile. The steps are in
    /// `docs/operating.md`, "Introducing or changing the secret"; what it costs is in
    /// [`EngineBuilder::with_previous_secret`](mcp_idempotent_core::engine::EngineBuilder::with_previous_secret).
    #[must_use]
    pub fn with_previous_secret(mut self, previous: impl Into<Option<Secret>>) -> Self {
        self.engine = self.engine.with_previous_secret(previous);
        self
    }

    /// Renames an application while calls are served: this is what it was called. See
    /// [`EngineBuilder::with_previous_application`](mcp_idempotent_core::engine::EngineBuilder::with_previous_application).
    #[must_use]
    pub fn with_previous_application(mut self, previous: impl Into<Application>) -> Self {
        self.engine = self.engine.with_previous_application(previous);
        self
    }

    /// For how long records are kept that were made under the previous secret: the longest
    /// retention of any tool, its tombstones included. Default: 24 hours.
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

    /// Gives refusals as tool results with `isError`, for hosts that hide protocol errors from the
    /// model.
    #[must_use]
    pub fn with_refusals_as_results(mut self, yes: bool) -> Self {
        self.settings.refusals_as_results = yes;
        self
    }

    /// Lets a replay say so in a content block as well: hosts do not show `_meta` to the model.
    #[must_use]
    pub fn with_announced_replays(mut self, yes: bool) -> Self {
        self.settings.announce_replays = yes;
        self
    }

    /// Checks the settings and builds.
    ///
    /// # Errors
    ///
    /// A duration of the policy is zero or longer than a hundred years, the policy's pointers are
    /// no JSON pointers, or its lease is not more than three times the store's limit on
    /// transactions.
    pub fn build(self) -> Result<Idempotency<S>, BuildError> {
        check(&self.settings.policy)?;
        if self.settings.policy.on_doubt == OnDoubt::Verify {
            return Err(BuildError::new(
                "the policy says OnDoubt::Verify, and a server's policy has no function to ask; say it for each tool: `on_doubt = verify(…)`, or Rule::with_verify".to_owned(),
            ));
        }
        let engine = self.engine.build();
        let limit = engine.store().transaction_limit();
        check_lease("the policy's", self.settings.policy.lease, limit)?;
        Ok(Idempotency::from_parts(engine, self.settings))
    }
}

impl<S> fmt::Debug for IdempotencyBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyBuilder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

/// A lease must outlive any transaction that keeps it from being renewed; the engine refuses calls
/// under another one, and here it is told before there are calls.
pub(crate) fn check_lease(
    whose: &str,
    lease: Duration,
    transaction_limit: Option<Duration>,
) -> Result<(), BuildError> {
    match transaction_limit {
        Some(limit) if lease <= limit.saturating_mul(3) => Err(BuildError::new(format!(
            "{whose} lease is {lease:?}; with this store it must be more than three times the limit on transactions, {limit:?}"
        ))),
        _ => Ok(()),
    }
}

pub(crate) fn check(policy: &Policy) -> Result<(), BuildError> {
    let wait = match policy.wait {
        Wait::UpTo(bound) => bound,
        _ => Duration::from_secs(1),
    };
    for (name, duration) in [
        ("retention", policy.retention),
        ("window", policy.window),
        ("lease", policy.lease),
        ("verify_timeout", policy.verify_timeout),
        ("in_doubt_retention", policy.in_doubt_retention),
        ("wait", wait),
    ] {
        if duration.is_zero() || duration > LONGEST {
            return Err(BuildError {
                message: format!(
                    "the policy's {name} is {duration:?}; it must be more than zero and at most a hundred years"
                ),
            });
        }
    }
    policy
        .check()
        .map_err(|error| BuildError::new(error.to_string()))?;
    for pointer in policy.ignored.iter().chain(policy.key_argument.as_ref()) {
        if !is_json_pointer(pointer) || pointer.is_empty() {
            return Err(BuildError {
                message: format!(
                    "{pointer:?} is no JSON pointer to an argument; write \"/{pointer}\" for the top-level argument of that name"
                ),
            });
        }
    }
    Ok(())
}
