//! Ends a lease on every way out.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use super::{handle::LeaseHandle, held::Held};
use crate::{
    engine::{claimed_call::ClaimedCall, guard::GuardEnd},
    handler_result::ResultKind,
    policy::OnDoubt,
    record::{RecordState, Timestamp},
    store::{LeaseEnd, Store, StoreError},
    telemetry::{ObservedCall, Outcome},
};

/// The pauses between two tries to record a result, while the store fails.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A held lease that must be ended. If it is dropped before anything can have acted under it, it is
/// released. If it is dropped later, its record is in doubt.
pub(super) struct EndOnDrop<S: Store> {
    pub(super) held: Arc<Held<Arc<S>>>,
    /// An earlier attempt may have acted.
    pub(super) in_doubt: bool,
    pub(super) stage: Stage,
    /// How long a released key remembers its origin.
    pub(super) keep_origin: Duration,
    /// The policy that a retry will meet if this attempt leaves doubt.
    pub(super) on_doubt: OnDoubt,
}

/// How far an attempt has got with its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Claimed,
    /// The handler was called.
    Started,
    /// The store has been told how the attempt ended.
    Ended,
}

impl<S: Store> EndOnDrop<S> {
    pub(super) fn handle(&self) -> LeaseHandle {
        LeaseHandle::new(Arc::<Held<Arc<S>>>::clone(&self.held))
    }

    /// Frees the key. If the handler ran (`acted`), or if there was an earlier attempt, the record stays
    /// for a time, because the next attempt needs its origin.
    pub(super) async fn release(&mut self, acted: bool) -> Result<LeaseEnd, StoreError> {
        self.held.end();
        let released = release(&self.held, acted, self.keep_origin).await;
        self.stage = Stage::Ended;
        if let Err(error) = &released {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "a claim could not be released; its call will be in doubt when the lease ends"
            );
        }
        released
    }

    /// Leaves the record in doubt.
    pub(super) async fn abandon(&mut self) -> Result<LeaseEnd, StoreError> {
        self.held.end();
        let abandoned = self.held.store.abandon(&self.held.lease).await;
        self.stage = Stage::Ended;
        if let Err(error) = &abandoned {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "the store could not be told that an attempt is in doubt; its lease will lapse"
            );
        }
        abandoned
    }

    /// Records the result, if the attempt still has its lease.
    pub(super) async fn complete(
        &mut self,
        call: &ClaimedCall,
        response: &Bytes,
    ) -> Result<LeaseEnd, StoreError> {
        let held = &self.held;
        // The result is known, and can only be stored while the lease lasts. Giving up would leave an
        // operator with a problem that may solve itself in a moment.
        let ended = while_lease_lasts(held, "a result could not be recorded", || {
            held.store.complete(&held.lease, call.completion(response))
        })
        .await;
        // If only the guard is lost, the lease is still there, and is abandoned when it is dropped.
        if !matches!(ended, Ok(LeaseEnd::Fenced)) {
            self.stage = Stage::Ended;
        }
        ended
    }
}

/// Asks again while the store fails and the lease lasts.
pub(super) async fn while_lease_lasts<S: Store, T, F>(
    held: &Held<Arc<S>>,
    failed: &'static str,
    mut ask: impl FnMut() -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    // Counted by the lease as it is now: the heartbeat may well extend the lease while the store fails.
    let bound = Instant::now() + held.left();
    let mut pause = FIRST_PAUSE;
    loop {
        let answer = ask().await;
        let left = bound.saturating_duration_since(Instant::now());
        match answer {
            Err(error) if error.is_transient() && !left.is_zero() => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "{failed}; trying again while the lease lasts"
                );
                sleep(pause.min(left)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            answer => return answer,
        }
    }
}

async fn release<S: Store>(
    held: &Held<Arc<S>>,
    acted: bool,
    keep_origin: Duration,
) -> Result<LeaseEnd, StoreError> {
    let lease = &held.lease;
    let keep = if acted || lease.attempts > 1 {
        keep_origin
    } else {
        Duration::ZERO
    };
    held.store.release(lease, keep).await
}

impl<S: Store> Drop for EndOnDrop<S> {
    fn drop(&mut self) {
        self.held.end();
        // A handle may outlive the attempt. Without this, nothing would end an open transaction, or
        // one that the handle opens later.
        drop(self.held.transaction().close());
        let may_have_acted = match self.stage {
            Stage::Ended => return,
            Stage::Started => true,
            Stage::Claimed => self.in_doubt,
        };
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let held = Arc::clone(&self.held);
        let keep_origin = self.keep_origin;
        drop(runtime.spawn(async move {
            let ended = if may_have_acted {
                held.store.abandon(&held.lease).await
            } else {
                release(&held, false, keep_origin).await
            };
            if let Err(error) = ended {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the store could not be told about a dropped attempt; its lease will lapse"
                );
            }
        }));
    }
}

/// Calls that joined are told what a record in doubt means to them.
pub(super) fn share_doubt<S: Store>(call: ClaimedCall, owned: &EndOnDrop<S>) {
    let lease = &owned.held.lease;
    call.share_state(RecordState::InDoubt {
        token: lease.token,
        attempts: lease.attempts,
        since: Timestamp::from_micros(0),
    });
}

/// What follows once the record is in doubt.
pub(super) async fn tell_of_doubt<S: Store>(
    owned: &EndOnDrop<S>,
    mut call: ClaimedCall,
    kind: ResultKind,
    observed: &mut ObservedCall,
) {
    call.warn_of_doubt(kind);
    observed.note(Outcome::LeftInDoubt);
    call.end_guard(GuardEnd::Abandon).await;
    share_doubt(call, owned);
}
