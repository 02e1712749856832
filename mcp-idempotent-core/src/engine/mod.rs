//! The engine: claim, run once, record; duplicates in this process join.
//!
//! It sees only calls with an [identity](Identity). [`transaction`] is transaction mode and [`lease`]
//! is lease mode; [`lead`] is what both begin with, [`flight`] is how duplicates join, and [`plan`]
//! says what is recorded of which result.

mod detach;
mod flight;
mod handler;
mod lead;
mod lease;
mod lent;
mod operator;
mod plan;
mod rotation;
mod secret;
mod status;
mod sweep;
mod transaction;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use crate::{
    canonical::CanonicalArguments,
    error::Refusal,
    fingerprint::{Identity, Secret},
    key::IdempotencyKey,
    policy::Policy,
    scope::{Application, Scope},
    store::{CallInfo, Store},
    telemetry::{Mode, ObservedCall},
};

pub use self::{
    detach::DetachOnDrop,
    flight::Round,
    handler::{Interrupted, after, bounded},
    lease::{Begun, InDoubtCall, LeaseAttempt, LeaseHandle, NotCurrent, Verdict, Verify},
    lent::{BeginError, Borrowed, Closed, Ending, LateTransaction, Left, Lent, NotLent},
    sweep::{SweepSettings, Sweeper},
    transaction::TransactionAttempt,
};

use self::{
    flight::{Flights, WaiterLimits},
    lease::Heart,
    rotation::Rotation,
    secret::SecretCheck,
};

/// Recognises retries and runs each call once. Cheap to clone; clones share everything.
pub struct Engine<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    store: Arc<S>,
    application: Application,
    secret: Option<Secret>,
    rotation: Option<Rotation>,
    secret_check: SecretCheck,
    flights: Arc<Flights>,
    heart: Arc<Heart<S>>,
}

impl<S: Store> Engine<S> {
    /// An engine with default limits.
    pub fn new(application: impl Into<Application>, store: S) -> Self {
        Self::builder(application, store).build()
    }

    /// Starts building an engine. The application's name is part of every record id: programs that
    /// share a store and must not share records need different names.
    ///
    /// Under another name no earlier record is found, and the retry of a call that was executed
    /// under the old one runs again. To rename an application, say what it was called:
    /// [`with_previous_application`](EngineBuilder::with_previous_application).
    pub fn builder(application: impl Into<Application>, store: S) -> EngineBuilder<S> {
        EngineBuilder {
            application: application.into(),
            store,
            secret: None,
            previous_secret: None,
            previous_application: None,
            rotation_period: Policy::DEFAULT_RETENTION,
            waiters: WaiterLimits {
                per_key: 4096,
                per_process: 65_536,
            },
        }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.inner.store
    }

    /// The application whose records these are.
    #[must_use]
    pub fn application(&self) -> &Application {
        &self.inner.application
    }

    /// How many calls wait for a running one, over all keys.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.flights.waiting()
    }

    /// Computes the identity of a call. Without a key it is derived from tool and arguments.
    #[must_use]
    pub fn identify(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        tool: &str,
        arguments: &CanonicalArguments,
    ) -> Identity {
        let of = |application: &Application, secret: Option<&Secret>| {
            Identity::new(application, scope, key, tool, arguments, secret)
        };
        let identity = of(&self.inner.application, self.inner.secret.as_ref());
        match &self.inner.rotation {
            Some(before) => {
                identity.with_previous(&of(&before.application, before.secret.as_ref()))
            }
            None => identity,
        }
    }
}

impl<S> Clone for Engine<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<S> std::fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("application", &self.inner.application)
            .finish_non_exhaustive()
    }
}

/// Builds an [`Engine`].
pub struct EngineBuilder<S> {
    application: Application,
    store: S,
    secret: Option<Secret>,
    /// None: it does not change. Some(None): there was none.
    previous_secret: Option<Option<Secret>>,
    previous_application: Option<Application>,
    rotation_period: Duration,
    waiters: WaiterLimits,
}

impl<S: Store> EngineBuilder<S> {
    /// Turns record ids and fingerprints into keyed hashes. All processes that share the store
    /// need the same secret: under another one no earlier record is found, and a retry would run
    /// again. The store therefore keeps a check value of the secret, or of having none, and a
    /// process that has another one refuses every call: at
    /// [`verify_secret`](Engine::verify_secret), with its first call, and, where the store's value
    /// has changed since, after [`SECRET_CHECKED_EVERY`](Engine::SECRET_CHECKED_EVERY) with calls.
    #[must_use]
    pub fn with_secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Replaces a secret while calls are served: this is the one before, or `None` where there was
    /// none. Each call is then looked up and locked under both, so that processes with the previous
    /// secret alone may serve beside this one, in a rolling deploy, and every call still has one
    /// record that all of them find.
    ///
    /// The first process that has it says so in the store. From then on a process with the new
    /// secret alone is refused until no process with the previous one alone was seen for
    /// [the period](Self::with_rotation_period). The first one that is not takes the new secret over
    /// for good, and processes with the previous one alone are refused. The steps for an operator
    /// are in `docs/operating.md`, "Introducing or changing the secret".
    ///
    /// Meanwhile a call costs up to two more writes in lease mode, and up to four in transaction
    /// mode. A call that is in doubt has two records.
    #[must_use]
    pub fn with_previous_secret(mut self, previous: impl Into<Option<Secret>>) -> Self {
        self.previous_secret = Some(previous.into());
        self
    }

    /// Renames an application while calls are served, as
    /// [`with_previous_secret`](Self::with_previous_secret) replaces a secret. Both may be given;
    /// without that one the secret stays as it is.
    ///
    /// Nothing in the store says when the previous name may be dropped: when one retention has
    /// passed since the last process without the new one ended.
    #[must_use]
    pub fn with_previous_application(mut self, previous: impl Into<Application>) -> Self {
        self.previous_application = Some(previous.into());
        self
    }

    /// For how long records are kept that were made under the previous secret: the longest
    /// retention of any tool, its tombstones included. A tool that keeps its results for longer is
    /// refused while a secret is replaced. Default: 24 hours, which is the default retention.
    #[must_use]
    pub const fn with_rotation_period(mut self, period: Duration) -> Self {
        self.rotation_period = period;
        self
    }

    /// How many calls may wait for a running one, per key and in this process. More are refused
    /// as `idempotency_too_many_waiting`. Defaults: 4096 and 65 536.
    #[must_use]
    pub const fn with_waiter_limits(mut self, per_key: usize, per_process: usize) -> Self {
        self.waiters = WaiterLimits {
            per_key,
            per_process,
        };
        self
    }

    /// The engine.
    #[must_use]
    pub fn build(self) -> Engine<S> {
        let changes = self.previous_secret.is_some() || self.previous_application.is_some();
        let rotation = changes.then(|| Rotation {
            application: self
                .previous_application
                .unwrap_or_else(|| self.application.clone()),
            secret: self.previous_secret.unwrap_or_else(|| self.secret.clone()),
            period: self.rotation_period,
        });
        Engine {
            inner: Arc::new(Inner {
                store: Arc::new(self.store),
                application: self.application,
                secret: self.secret,
                rotation,
                secret_check: SecretCheck::default(),
                flights: Arc::new(Flights::new(self.waiters)),
                heart: Arc::new(Heart::new()),
            }),
        }
    }
}

impl<S> std::fmt::Debug for EngineBuilder<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineBuilder")
            .field("application", &self.application)
            .field("waiters", &self.waiters)
            .finish_non_exhaustive()
    }
}

/// Decides whether the caller may have an answer, before every new call, replay and join (again
/// when it wakes). Checks inside a handler do not protect replays: the handler does not run.
pub trait Authorize: Send + Sync {
    /// Answers `Ok` when the caller may call the tool.
    ///
    /// # Errors
    ///
    /// The refusal that the caller gets. Nothing was run or changed.
    fn authorize<'a>(
        &'a self,
        call: &'a CallInfo,
    ) -> Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send + 'a>>;
}

/// One call with an identity, as the engine sees it.
pub struct Request<'a> {
    call: CallInfo,
    identity: Identity,
    policy: &'a Arc<Policy>,
    round: Round,
    authorize: Option<&'a dyn Authorize>,
    verify: Option<&'a dyn Verify>,
    tool_is_listed: bool,
    policy_is_checked: bool,
}

impl<'a> Request<'a> {
    /// The tool, and whose call it is.
    #[must_use]
    pub const fn call(&self) -> &CallInfo {
        &self.call
    }

    /// A call of the tool and scope in `call`, under `policy`.
    #[must_use]
    pub const fn new(call: CallInfo, identity: Identity, policy: &'a Arc<Policy>) -> Self {
        Self {
            call,
            identity,
            policy,
            round: None,
            authorize: None,
            verify: None,
            tool_is_listed: true,
            policy_is_checked: false,
        }
    }

    /// Says which round of a multi round-trip call this is.
    #[must_use]
    pub const fn with_round(mut self, round: Round) -> Self {
        self.round = round;
        self
    }

    /// Asks before every answer.
    #[must_use]
    pub const fn with_authorize(mut self, authorize: &'a dyn Authorize) -> Self {
        self.authorize = Some(authorize);
        self
    }

    /// Asks about a call in doubt, where the policy says [`OnDoubt::Verify`](crate::OnDoubt).
    /// Without it such a call is refused as under [`OnDoubt::Fail`](crate::OnDoubt).
    #[must_use]
    pub const fn with_verify(mut self, verify: &'a dyn Verify) -> Self {
        self.verify = Some(verify);
        self
    }

    /// Says that the server does not list this tool. Metrics then do not show its name, so that
    /// a client cannot make new time series by calling names that it made up.
    #[must_use]
    pub const fn with_unlisted_tool(mut self) -> Self {
        self.tool_is_listed = false;
        self
    }

    /// Says that [`Policy::check`] has passed the policy for this engine's store. Without it the
    /// engine checks, at each call, what the store and the heartbeat rely on.
    #[must_use]
    pub const fn with_checked_policy(mut self) -> Self {
        self.policy_is_checked = true;
        self
    }

    fn check_policy(&self, transaction_limit: Option<Duration>) -> Result<(), Refusal> {
        if self.policy_is_checked {
            return Ok(());
        }
        self.policy.check_times(transaction_limit).map_err(|error| {
            let tool = &*self.call.tool;
            tracing::error!(tool, %error, "a call was refused: its tool's policy cannot hold");
            error.into()
        })
    }

    fn observe(&self, application: &Application, mode: Mode) -> ObservedCall {
        ObservedCall::start(
            application,
            &self.call.tool,
            self.tool_is_listed,
            Some(&self.identity),
            Some(mode),
        )
    }
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("call", &self.call)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}
