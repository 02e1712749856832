//! The handler's view of its lease.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::{held::Held, lapse::NotCurrent};
use crate::{
    engine::{
        claimed_call::ClaimedCall,
        late_transaction::{BeginError, CompletionError},
        lent::Borrowed,
        plan,
    },
    fingerprint::DownstreamKey,
    policy::Policy,
    store::{Completion, CompletionStatement, TransactionStore},
};

/// What a handler in lease mode can find out about its attempt, and do with it. Cheap to clone. A
/// clone may outlive the attempt; it is then no longer current.
#[derive(Clone)]
pub struct LeaseHandle {
    held: Arc<Held>,
    /// How the attempt's own result is recorded. `None` while the call is only verified.
    recording: Option<Recording>,
}

/// What a completion needs beside the result.
#[derive(Clone)]
struct Recording {
    policy: Arc<Policy>,
    /// Without a result.
    completion: Completion,
}

impl LeaseHandle {
    pub(super) const fn new(held: Arc<Held>) -> Self {
        Self {
            held,
            recording: None,
        }
    }

    /// The same handle for the handler, which can complete its attempt.
    pub(super) fn recording(self, call: &ClaimedCall) -> Self {
        let recording = Recording {
            policy: Arc::clone(&call.policy),
            completion: call.completion(&Bytes::new()),
        };
        Self {
            recording: Some(recording),
            ..self
        }
    }

    /// A key for a call to another system. It is the same for every attempt at this call and
    /// different for each `step`. A handler with only one outside call can choose any name for it,
    /// but must not change the name later: calls that are under way would then be made twice.
    #[must_use]
    pub fn downstream_key(&self, step: &str) -> DownstreamKey {
        self.held.downstream_key(step)
    }

    /// Asks the store now whether this attempt still has its lease, and renews it. Call it right
    /// before the outside call. If the process (or its machine) was paused, the lease may have
    /// ended without the handler noticing.
    ///
    /// This narrows the gap but does not close it. If another attempt takes over right after it,
    /// only the downstream key stops a late outside call.
    ///
    /// Call it before [`begin`](Self::begin), not after. It uses a second connection besides the
    /// transaction's. And a transaction above READ COMMITTED cannot complete a lease that was
    /// renewed after its first statement.
    ///
    /// # Errors
    ///
    /// [`NotCurrent`], at the latest when the lease has ended. Do not make the outside call in that
    /// case.
    pub async fn ensure_current(&self) -> Result<(), NotCurrent> {
        self.held.renew_now().await
    }

    /// Opens the attempt's transaction. When the handler returns a result, its writes through this
    /// transaction, the result and the end of the lease commit together or not at all. Begin it
    /// after the outside call, so that no connection is held while the other side is working.
    ///
    /// Dropping it does not roll back: everything written until then commits when the handler
    /// returns a result. A handler that abandons its own writes halfway (because of a timeout
    /// around them) must return an error, or use a savepoint.
    ///
    /// # Errors
    ///
    /// [`BeginError`]. The outside call may have been made already. The policy's
    /// [`OnError`](crate::OnError) then decides what is recorded.
    pub async fn begin<S: TransactionStore>(&self) -> Result<Borrowed<S>, BeginError> {
        let held = &self.held;
        let store = held
            .store
            .any()
            .downcast::<Arc<S>>()
            .map_err(|_| BeginError::AnotherStore)?;
        if held.is_lost() {
            return Err(BeginError::Ended);
        }
        held.transaction().begin(&store, &held.call).await
    }

    /// The statement that completes this attempt with `response`, to be run in a transaction of another
    /// driver on the store's database, as its last statement. The handler's effect, the result and the end
    /// of the lease then commit together or not at all. `response` must be what
    /// [`HandlerResult::encode`](crate::HandlerResult::encode) returns for the handler's result.
    ///
    /// Only one statement of an attempt can take effect, no matter how many it asks for. From now on the
    /// store decides what became of the attempt: [`LeaseAttempt::finish`](crate::LeaseAttempt::finish) looks
    /// there, and does not record a result of its own unless it is an error's.
    ///
    /// # Errors
    ///
    /// [`CompletionError`]. Nothing was changed.
    pub fn completion(&self, response: &Bytes) -> Result<CompletionStatement, CompletionError> {
        let held = &self.held;
        let (Some(foreign), Some(recording)) = (held.store.foreign_transactions(), &self.recording)
        else {
            return Err(CompletionError::NotSupported);
        };
        if held.is_lost() {
            return Err(CompletionError::Ended);
        }
        held.transaction().complete_elsewhere()?;
        let mut completion = recording.completion.clone();
        completion.response = plan::kept(&recording.policy, response);
        Ok(foreign.completion(&held.lease, completion))
    }

    /// Resolves when the lease is lost while the attempt is running, and never otherwise.
    pub async fn lost(&self) {
        self.held.lost().await;
    }

    /// Resolves when the handler should stop: its lease is lost, or its [transaction](Self::begin) can
    /// no longer be committed, or the time for that transaction is nearly over.
    pub async fn told_to_stop(&self) {
        tokio::select! {
            () = self.held.lost() => {}
            () = self.held.transaction().told_to_stop() => {}
        }
    }

    /// Whether the lease is known to be lost. The store may know more:
    /// [`ensure_current`](Self::ensure_current).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.is_lost()
    }

    /// Which attempt at this call this is; the first is 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.held.lease.attempts
    }

    /// The fencing token. It grows with each attempt, and a store never uses one twice. A system
    /// that can compare tokens can refuse a late attempt.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.held.lease.token
    }
}

impl fmt::Debug for LeaseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseHandle")
            .field("token", &self.token())
            .field("number", &self.number())
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}
