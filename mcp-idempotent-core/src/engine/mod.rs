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
};

/// Recognises retries and runs each call once. Cheap to clone; clones share everything.
pub struct Engine<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    store: Arc<S>,
    application: Application,
    secret: Option<Secret>,
    secret_fits: tokio::sync::OnceCell<()>,
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
    pub fn builder(application: impl Into<Application>, store: S) -> EngineBuilder<S> {
        EngineBuilder {
            application: application.into(),
            store,
            secret: None,
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
        Identity::new(
            &self.inner.application,
            scope,
            key,
            tool,
            arguments,
            self.inner.secret.as_ref(),
        )
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
    waiters: WaiterLimits,
}

impl<S: Store> EngineBuilder<S> {
    /// Turns record ids and fingerprints into keyed hashes. All processes that share the store
    /// need the same secret: under another one no earlier record is found, and a retry would run
    /// again. The store therefore keeps a check value, and an engine with another secret, or with
    /// none, refuses every call.
    #[must_use]
    pub fn with_secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
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
        Engine {
            inner: Arc::new(Inner {
                store: Arc::new(self.store),
                application: self.application,
                secret: self.secret,
                secret_fits: tokio::sync::OnceCell::new(),
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
