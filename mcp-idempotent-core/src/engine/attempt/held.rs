//! A lease in somebody's hand, who has to finish it.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use super::Protected;
use crate::{
    engine::lease::{Kept, LeaseHandle},
    policy::{OnDoubt, Policy},
    store::{LeaseEnd, Store, StoreError},
};

/// Between two tries to record a result while the store fails.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A lease that somebody has to finish. Dropped while nobody can have acted it is released, after
/// that its record is in doubt.
pub(in crate::engine) struct HeldLease<S: Store> {
    pub(super) kept: Arc<Kept<S>>,
    /// An earlier attempt may have acted.
    pub(in crate::engine) in_doubt: bool,
    pub(super) started: bool,
    /// For how long a released key remembers where it comes from.
    keep_origin: Duration,
    /// What a retry will find, if this attempt leaves doubt.
    pub(super) on_doubt: OnDoubt,
    pub(super) finished: bool,
}

impl<S: Store> HeldLease<S> {
    pub(in crate::engine) const fn new(
        kept: Arc<Kept<S>>,
        in_doubt: bool,
        keep_origin: Duration,
        on_doubt: OnDoubt,
    ) -> Self {
        Self {
            kept,
            in_doubt,
            started: false,
            keep_origin,
            on_doubt,
            finished: false,
        }
    }

    pub(in crate::engine) fn handle(&self) -> LeaseHandle {
        LeaseHandle::new(Arc::clone(&self.kept))
    }

    /// Frees the key. What was never started leaves no trace, unless an attempt before it was.
    pub(super) async fn release(&mut self, acted: bool) {
        self.kept.end();
        let released = release(&self.kept, acted, self.keep_origin).await;
        self.finished = true;
        if let Err(error) = released {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a claim could not be released; its call is in doubt once the lease ends"
            );
        }
    }

    pub(in crate::engine) async fn abandon(&mut self) {
        self.kept.end();
        let abandoned = abandon(&self.kept).await;
        self.finished = true;
        if let Err(error) = abandoned {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "an attempt in doubt could not be told to the store; its lease will lapse"
            );
        }
    }
}

async fn release<S: Store>(
    kept: &Kept<S>,
    acted: bool,
    keep_origin: Duration,
) -> Result<(), StoreError> {
    let Some(lease) = kept.lease() else {
        return Ok(());
    };
    let keep = if acted || lease.attempts > 1 {
        keep_origin
    } else {
        Duration::ZERO
    };
    kept.store.release(lease, keep).await.map(drop)
}

async fn abandon<S: Store>(kept: &Kept<S>) -> Result<(), StoreError> {
    match kept.lease() {
        Some(lease) => kept.store.abandon(lease).await.map(drop),
        None => Ok(()),
    }
}

impl<S: Store> Drop for HeldLease<S> {
    fn drop(&mut self) {
        self.kept.end();
        if self.finished || self.kept.lease().is_none() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let (kept, may_have_acted) = (Arc::clone(&self.kept), self.started || self.in_doubt);
        let keep_origin = self.keep_origin;
        drop(runtime.spawn(async move {
            let ended = if may_have_acted {
                abandon(&kept).await
            } else {
                release(&kept, false, keep_origin).await
            };
            if let Err(error) = ended {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a dropped attempt could not be told to the store; its lease will lapse"
                );
            }
        }));
    }
}

impl<S: Store> HeldLease<S> {
    pub(in crate::engine) async fn complete(
        &mut self,
        protected: &Protected,
        policy: &Policy,
        response: &bytes::Bytes,
    ) -> Result<LeaseEnd, StoreError> {
        let Some(lease) = self.kept.lease() else {
            return Ok(LeaseEnd::Fenced);
        };
        // For as long as it lasts now: it may well be renewed while no result can be recorded.
        let bound = Instant::now() + self.kept.left();
        let mut pause = FIRST_PAUSE;
        let ended = loop {
            let completion = protected.completion(policy, response);
            let ended = self.kept.store.complete(lease, completion).await;
            let left = bound.saturating_duration_since(Instant::now());
            match ended {
                // The result is known, and only while the lease lasts can it be kept: giving up
                // would leave to an operator what a moment may mend.
                Err(error) if error.is_transient() && !left.is_zero() => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "a result could not be recorded; trying again while the lease lasts"
                    );
                    sleep(pause.min(left)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                ended => break ended,
            }
        };
        self.finished = true;
        ended
    }
}
