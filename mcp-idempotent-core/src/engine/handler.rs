//! Running the author's handler. Its task knows which record it holds, its time is bounded, and its
//! panic does not end the caller.

use std::{cell::RefCell, fmt, future::Future, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt as _;
use tokio::{sync::watch, time::sleep};
use tracing::Instrument as _;

use crate::{fingerprint::RecordId, policy::Policy, telemetry::ObservedCall};

tokio::task_local! {
    /// The records whose handlers run in this task. A call that would wait for itself is refused.
    static HELD: RefCell<Vec<RecordId>>;
}

/// Why a handler has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interrupted {
    /// It panicked. The panic hook has already reported it.
    Panicked,
    /// It held its transaction for longer than its policy or the store allows, and was dropped.
    OverTime,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Panicked => "the handler panicked",
            Self::OverTime => "the handler held its transaction for too long",
        })
    }
}

impl std::error::Error for Interrupted {}

/// Whether a handler of this record runs in the current task.
pub(super) fn is_held_by_this_task(id: RecordId) -> bool {
    HELD.try_with(|held| held.borrow().contains(&id))
        .unwrap_or(false)
}

/// Runs a handler of the record `id`, until `over_time` resolves.
pub(super) async fn run<T>(
    id: RecordId,
    observed: &ObservedCall,
    over_time: impl Future<Output = ()>,
    handler: impl Future<Output = T>,
) -> Result<T, Interrupted> {
    let _timed = observed.handler();
    let mut held = HELD
        .try_with(|held| held.borrow().clone())
        .unwrap_or_default();
    held.push(id);
    let handler = handler.instrument(observed.span());
    bounded(over_time, HELD.scope(RefCell::new(held), handler)).await
}

/// Runs the handler of an unprotected call, until `over_time` resolves.
///
/// # Errors
///
/// [`Interrupted`]. Roll the transaction back then.
pub async fn bounded<T>(
    over_time: impl Future<Output = ()>,
    handler: impl Future<Output = T>,
) -> Result<T, Interrupted> {
    tokio::select! {
        biased;
        ended = AssertUnwindSafe(handler).catch_unwind() => ended.map_err(|_| Interrupted::Panicked),
        () = over_time => Err(Interrupted::OverTime),
    }
}

/// Tells a handler in transaction mode to stop. Clones tell the same handler.
#[derive(Debug, Clone, Default)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// Tells the handler to stop.
    pub fn tell(&self) {
        self.0.send_replace(true);
    }

    /// Resolves when the handler is told to stop.
    pub async fn told(&self) {
        // The channel lives as long as this.
        drop(self.0.subscribe().wait_for(|told| *told).await);
    }
}

/// How long a handler may hold its transaction.
#[derive(Debug, Clone, Copy)]
pub struct TimeLimit {
    told: Option<Duration>,
    dropped: Option<Duration>,
}

impl TimeLimit {
    /// The limit of a policy in a store; see [`Policy::transaction_timeout`] and
    /// [`Store::transaction_limit`](crate::Store::transaction_limit). The store's limit includes the
    /// grace, which is then a tenth of it.
    #[must_use]
    pub fn new(policy: &Policy, of_store: Option<Duration>) -> Self {
        let shorter = |one: Option<Duration>, other| one.into_iter().chain(other).min();
        let timeout = policy.transaction_timeout;
        let grace = |time: Duration| time.min(Policy::LONGEST_GRACE);
        Self {
            told: shorter(timeout, of_store.map(|limit| limit - grace(limit / 10))),
            dropped: shorter(timeout.map(|time| time + grace(time)), of_store),
        }
    }

    /// Tells the handler to stop when its time is over, and resolves when it must be dropped.
    pub async fn over(self, stop: &Stop) {
        let told = async {
            after(self.told).await;
            stop.tell();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = after(self.dropped) => {}
            () = told => {}
        }
    }
}

async fn after(limit: Option<Duration>) {
    match limit {
        Some(limit) => sleep(limit).await,
        None => std::future::pending().await,
    }
}
