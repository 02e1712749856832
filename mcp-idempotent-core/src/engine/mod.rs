//! The engine: claim, run once, record; duplicates in this process join.
//!
//! It sees only calls with an [identity](Identity). `transaction` is transaction mode on one page, `lease`
//! is lease mode. `claim` is what both begin with, `flight` is how duplicates join, and `plan` says
//! what is recorded of which result.

mod builder;
mod claim;
mod detach;
mod flight;
mod handler;
mod late;
mod lead;
mod lease;
mod lent;
mod operator;
mod plan;
mod request;
mod rotation;
mod secret;
mod status;
mod sweep;
mod transaction;

use std::sync::Arc;

use crate::{
    canonical::CanonicalArguments,
    fingerprint::{Identity, Secret},
    key::IdempotencyKey,
    scope::{Application, Scope},
    store::Store,
};

pub use self::{
    builder::EngineBuilder,
    detach::DetachOnDrop,
    flight::Round,
    handler::{Interrupted, after, bounded},
    late::{BeginError, Ending, LateTransaction, Left},
    lease::{Begun, InDoubtCall, LeaseAttempt, LeaseHandle, NotCurrent, Verdict, Verify},
    lent::{Borrowed, Closed, Lent, NotLent},
    request::{Authorize, Request},
    sweep::{SweepSettings, Sweeper},
    transaction::TransactionAttempt,
};

use self::{flight::Flights, lease::Heart, rotation::Rotation, secret::SecretCheck};

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
        EngineBuilder::new(application.into(), store)
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
