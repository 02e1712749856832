//! The engine: claim, run once, record; duplicates in this process join.

mod answer;
mod attempt;
mod begin;
mod detach;
mod flight;
mod lease;
mod lent;
mod operator;
mod plan;
mod secret;
mod status;
mod sweep;
mod verify;

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
    answer::{Answer, Replay},
    attempt::{Interrupted, LeaseAttempt, TransactionAttempt},
    detach::DetachOnDrop,
    flight::Round,
    lease::{BeginError, LeaseHandle, LeaseTransaction, NotCurrent},
    lent::LentAttempt,
    sweep::{SweepSettings, Sweeper},
    verify::{InDoubtCall, Verdict, Verify},
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
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// The application whose records these are.
    #[must_use]
    pub fn application(&self) -> &Application {
        &self.inner.application
    }

    /// Counts and traces a call that was refused before it could be identified: for want of a
    /// valid key, or of a scope. Every other call is observed by the engine itself.
    pub fn observe_refusal(&self, tool: impl Into<Arc<str>>, refusal: &Refusal) {
        ObservedCall::start(&self.inner.application, &tool.into(), true, None, None)
            .refused(refusal);
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

/// One call, as the engine sees it.
pub struct Request<'a> {
    call: CallInfo,
    identity: Option<Identity>,
    policy: &'a Arc<Policy>,
    round: Round,
    authorize: Option<&'a dyn Authorize>,
    verify: Option<&'a dyn Verify>,
    tool_is_listed: bool,
    policy_is_checked: bool,
    observed: Option<&'a ObservedCall>,
}

impl<'a> Request<'a> {
    /// A protected call.
    #[must_use]
    pub const fn new(call: CallInfo, identity: Identity, policy: &'a Arc<Policy>) -> Self {
        Self {
            call,
            identity: Some(identity),
            policy,
            round: None,
            authorize: None,
            verify: None,
            tool_is_listed: true,
            policy_is_checked: false,
            observed: None,
        }
    }

    /// A call that runs without deduplication, in a transaction that records nothing.
    #[must_use]
    pub const fn unprotected(call: CallInfo, policy: &'a Arc<Policy>) -> Self {
        Self {
            call,
            identity: None,
            policy,
            round: None,
            authorize: None,
            verify: None,
            tool_is_listed: true,
            policy_is_checked: false,
            observed: None,
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
        let identity = self.identity.as_ref();
        ObservedCall::start(
            application,
            &self.call.tool,
            self.tool_is_listed,
            identity,
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

/// How a call begins.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a caller must handle every beginning"
)]
pub enum Begun<A> {
    /// There is an answer already; the handler does not run.
    Answer(Answer),
    /// Run the handler under this attempt.
    Attempt(A),
    /// The store is away and the policy says to run all the same, without any protection.
    Unprotected,
}
