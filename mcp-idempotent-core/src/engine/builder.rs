//! Building an [`Engine`].

use std::{sync::Arc, time::Duration};

use super::{
    Engine, Inner,
    flight::{Flights, WaiterLimits},
    lease::Heart,
    quota::Quota,
    replacement::Replacement,
    secret::SecretCheck,
};
use crate::{fingerprint::Secret, policy::Policy, scope::Application, store::Store};

/// Builds an [`Engine`].
pub struct EngineBuilder<S> {
    application: Application,
    store: S,
    secret: Option<Secret>,
    /// `None`: the secret does not change. `Some(None)`: there was no secret before.
    previous_secret: Option<Option<Secret>>,
    previous_application: Option<Application>,
    rotation_period: Duration,
    waiters: WaiterLimits,
    quota: Option<(u32, Duration)>,
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
            quota: None,
        }
    }

    /// Turns record ids and fingerprints into keyed hashes. All processes that share the store need
    /// the same secret. With a different one, no earlier record is found, and a retry would run
    /// again.
    ///
    /// So the store keeps a check value for the secret, or for having none. A process with a
    /// different secret refuses every call. It notices at [`verify_secret`](Engine::verify_secret) or
    /// with its first call. If the store's value changes later, a process that serves calls notices
    /// within [`SECRET_CHECKED_EVERY`](Engine::SECRET_CHECKED_EVERY).
    #[must_use]
    pub fn with_secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Replaces a secret while calls are served. `previous` is the old secret, or `None` if there
    /// was none. Each call is then looked up and locked under both secrets. So in a rolling deploy,
    /// processes that only know the previous secret may serve beside this one, and every call still
    /// has one record that all of them find.
    ///
    /// The first process with a previous secret announces the change in the store. From then on, a
    /// process with only the new secret is refused until no process with only the previous one has
    /// been seen for [the period](Self::with_rotation_period). The first process that is not
    /// refused makes the new secret permanent, and processes with only the previous one are
    /// refused. The steps for an operator are in `docs/operating.md`, "Introducing or changing the
    /// secret".
    ///
    /// During the change a call costs one more write in lease mode, and three in transaction mode.
    /// A call in doubt has two records. A process with only the new secret is also refused while
    /// older calls in the store are in progress or in doubt.
    #[must_use]
    pub fn with_previous_secret(mut self, previous: impl Into<Option<Secret>>) -> Self {
        self.previous_secret = Some(previous.into());
        self
    }

    /// Renames an application while calls are served, in the same way as
    /// [`with_previous_secret`](Self::with_previous_secret) replaces a secret. Both may be given.
    /// Without a previous secret, the secret stays the same.
    ///
    /// The store does not say when you may drop the previous name. You may drop it one retention
    /// after the last process without the new name has ended.
    #[must_use]
    pub fn with_previous_application(mut self, previous: impl Into<Application>) -> Self {
        self.previous_application = Some(previous.into());
        self
    }

    /// How long records made under the previous secret are kept: the longest retention of any tool,
    /// including its tombstones. While a secret is replaced, tools that keep their results for
    /// longer are refused. Default: 24 hours, which is the default retention.
    #[must_use]
    pub const fn with_rotation_period(mut self, period: Duration) -> Self {
        self.rotation_period = period;
        self
    }

    /// How many calls may wait for a running one, per key and in this process. Further calls are
    /// refused as `idempotency_too_many_waiting`. Defaults: 4096 and 65 536.
    #[must_use]
    pub const fn with_waiter_limits(mut self, per_key: usize, per_process: usize) -> Self {
        self.waiters = WaiterLimits {
            per_key,
            per_process,
        };
        self
    }

    /// Limits how many new calls each scope may begin in each `period`, over all processes that share
    /// the store. Further ones are refused as `idempotency_too_many_new_calls`. Replays and
    /// duplicates of running calls are not counted, and calls that leave no record are. Default: no
    /// limit.
    ///
    /// The quota is handed out in up to 16 parts of about the same size, each for one period, which need
    /// not begin at the same time. So a scope may begin up to twice as many calls in some interval of
    /// that length. A process keeps the part that it was given, so a scope whose calls go to several
    /// processes may be refused up to a sixteenth per process too early. The store is asked once for each
    /// part.
    /// While a secret is replaced, both secrets have a quota of their own.
    ///
    /// A quota of zero counts as one, and a period is at least one second.
    #[must_use]
    pub const fn with_new_calls_per_scope(mut self, most: u32, period: Duration) -> Self {
        self.quota = Some((most, period));
        self
    }

    /// Builds the engine.
    #[must_use]
    pub fn build(self) -> Engine<S> {
        let changes = self.previous_secret.is_some() || self.previous_application.is_some();
        let replacement = changes.then(|| Replacement {
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
                replacement,
                secret_check: SecretCheck::default(),
                flights: Arc::new(Flights::new(self.waiters)),
                quota: self
                    .quota
                    .map(|(most, period)| Arc::new(Quota::new(most, period))),
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
