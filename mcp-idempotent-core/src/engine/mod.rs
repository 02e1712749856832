//! The engine: claims a key, runs the call once, records the result. Duplicates in this process
//! join.
//!
//! It only sees calls with an [identity](Identity).
//!
//! | Where is … | |
//! | --- | --- |
//! | what the engine is given | `builder` (the engine), `request` (a call) |
//! | the beginning of a call, in both modes | `claim`; `take_over` for leases and guards |
//! | joining a call that runs in this process | `flight`; `claimed_call` is the call that the others wait for |
//! | transaction mode | `transaction`, on one page |
//! | lease mode, and what happens when a lease lapses | `lease` |
//! | the handler | `handler` runs it, and lets it outlive its caller |
//! | the handler's transaction | `lent`; `late_transaction` if it begins after an outside call |
//! | what is recorded, and what follows if the store fails | `plan` |
//! | a limit on new calls | `quota` |
//! | the secret, and its replacement | `secret`, `replacement` |
//! | a second lease, while a secret is replaced or where equal calls under other keys matter | `guard` |
//! | looking at records, resolving and removing them | `status`, `operator`, `sweep`, `swept` |
//!
//! What a caller is told of a record is in `answer`, beside this folder.

mod builder;
mod claim;
mod claimed_call;
mod flight;
mod guard;
mod handler;
mod late_transaction;
mod lease;
mod lent;
mod operator;
mod plan;
mod quota;
mod replacement;
mod request;
mod secret;
mod status;
mod sweep;
mod swept;
mod take_over;
mod transaction;

use std::sync::Arc;

use crate::{
    canonical::CanonicalArguments,
    fingerprint::{Identity, Secret},
    key::IdempotencyKey,
    policy::{InvalidPolicy, Policy, RotatedKeys},
    scope::{Application, Scope},
    store::Store,
};

pub use self::{
    builder::EngineBuilder,
    flight::Round,
    handler::{DetachOnDrop, Interrupted, Stop, TimeLimit, bounded},
    late_transaction::{BeginError, CompletionError, Ending, LateTransaction, Left},
    lease::{Begun, InDoubtCall, LeaseAttempt, LeaseHandle, NotCurrent, Verdict, Verify},
    lent::{Borrowed, Closed, Lent, NotLent, is_inside_transaction, outside_any_transaction},
    plan::commits,
    request::{Authorize, Request},
    secret::{SecretError, SecretErrorKind},
    sweep::{SweepSettings, Sweeper},
    transaction::TransactionAttempt,
};

use self::{
    flight::Flights, lease::Heart, quota::Quota, replacement::Replacement, secret::SecretCheck,
};

/// Recognises retries and runs each call once. Cheap to clone; clones share everything.
pub struct Engine<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    store: Arc<S>,
    application: Application,
    secret: Option<Secret>,
    replacement: Option<Replacement>,
    secret_check: SecretCheck,
    flights: Arc<Flights>,
    /// How many new calls a scope may begin, if that is limited.
    quota: Option<Arc<Quota>>,
    heart: Arc<Heart>,
}

impl<S: Store> Engine<S> {
    /// An engine with default limits.
    pub fn new(application: impl Into<Application>, store: S) -> Self {
        Self::builder(application, store).build()
    }

    /// Starts building an engine. The application's name is part of every record id. Programs that
    /// share a store but not their records need different names.
    ///
    /// Under a new name no earlier record is found: a retry of a call that ran under the old name
    /// runs again. To rename an application, give its old name to
    /// [`with_previous_application`](EngineBuilder::with_previous_application).
    pub fn builder(application: impl Into<Application>, store: S) -> EngineBuilder<S> {
        EngineBuilder::new(application.into(), store)
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.inner.store
    }

    /// The application that owns the records.
    #[must_use]
    pub fn application(&self) -> &Application {
        &self.inner.application
    }

    /// How many calls are waiting for a running one, over all keys.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.flights.waiting()
    }

    /// Computes the identity of a call. Without a key, it is derived from tool and arguments.
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
        match &self.inner.replacement {
            Some(before) => {
                identity.with_previous(&of(&before.application, before.secret.as_ref()))
            }
            None => identity,
        }
    }

    /// Like [`identify`](Self::identify), for a call under this policy. If the policy minds
    /// [rotated keys](Policy::rotated_keys), the call can be told from equal calls under other keys.
    #[must_use]
    pub fn identify_under(
        &self,
        policy: &Policy,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        tool: &str,
        arguments: &CanonicalArguments,
    ) -> Identity {
        let identity = self.identify(scope, key, tool, arguments);
        if policy.rotated_keys == RotatedKeys::Allow
            || key.is_none_or(IdempotencyKey::is_new_intent)
        {
            return identity;
        }
        let Inner {
            application,
            secret,
            ..
        } = &*self.inner;
        identity.with_equal_calls(application, scope, tool, arguments, secret.as_ref())
    }

    /// Checks what depends on this engine in a policy.
    ///
    /// # Errors
    ///
    /// The policy minds rotated keys while a secret or an application's name is replaced. Calls under it
    /// are refused.
    pub fn check_policy(&self, policy: &Policy) -> Result<(), InvalidPolicy> {
        if self.inner.replacement.is_none() || policy.rotated_keys == RotatedKeys::Allow {
            return Ok(());
        }
        Err(InvalidPolicy::new(format!(
            "RotatedKeys::{:?} cannot be used while a secret or an application's name is replaced; set \
             RotatedKeys::Allow until that is over",
            policy.rotated_keys
        )))
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
