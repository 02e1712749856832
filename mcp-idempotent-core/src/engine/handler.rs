//! Running the author's handler. Its task knows which record it holds, its time is bounded, and its
//! panic does not end the caller.

use std::{cell::RefCell, fmt, future::Future, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt as _;
use tracing::Instrument as _;

use crate::{fingerprint::RecordId, telemetry::ObservedCall};

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
    /// It held its transaction for longer than the store allows, and was dropped.
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

/// Resolves after `limit`, the longest time a handler may hold its transaction. Never resolves
/// without a limit.
pub async fn after(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}
