//! Building an [`Engine`].

use std::{sync::Arc, time::Duration};

use super::{
    Engine, Inner,
    flight::{Flights, WaiterLimits},
    lease::Heart,
    rotation::Rotation,
    secret::SecretCheck,
};
use crate::{fingerprint::Secret, policy::Policy, scope::Application, store::Store};

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
    pub(super) const fn new(application: Application, store: S) -> Self {
        Self {
            application,
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
