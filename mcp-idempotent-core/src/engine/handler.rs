//! Running the author's handler. Its task knows which record it holds, its time is bounded, its panic
//! does not end the caller, and it outlives a caller that goes away.

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::Instrument as _;

use crate::{
    fingerprint::RecordId,
    policy::Policy,
    sync::{AtomicBool, Handle, Notify},
    telemetry::ObservedCall,
};

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
    /// The session of its transaction had ended, so it worked in vain, and was dropped.
    SessionEnded,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Panicked => "the handler panicked",
            Self::OverTime => "the handler held its transaction for too long",
            Self::SessionEnded => "the session of the handler's transaction ended",
        })
    }
}

impl std::error::Error for Interrupted {}

/// Whether a handler of this record runs in the current task.
pub(super) fn is_held_by_this_task(id: RecordId) -> bool {
    HELD.try_with(|held| held.borrow().contains(&id))
        .unwrap_or(false)
}

/// Runs a handler of the record `id`, until `over` resolves.
pub(super) async fn run<T>(
    id: RecordId,
    observed: &ObservedCall,
    over: impl Future<Output = Interrupted>,
    handler: impl Future<Output = T>,
) -> Result<T, Interrupted> {
    let _timed = observed.handler();
    let mut held = HELD
        .try_with(|held| held.borrow().clone())
        .unwrap_or_default();
    held.push(id);
    let handler = handler.instrument(observed.span());
    bounded(over, HELD.scope(RefCell::new(held), handler)).await
}

/// Runs a handler until `over` resolves and says why it is dropped. Catches its panic.
///
/// # Errors
///
/// [`Interrupted`]. Roll the transaction back then.
pub async fn bounded<T>(
    over: impl Future<Output = Interrupted>,
    handler: impl Future<Output = T>,
) -> Result<T, Interrupted> {
    tokio::select! {
        biased;
        ended = AssertUnwindSafe(handler).catch_unwind() => ended.map_err(|_| Interrupted::Panicked),
        why = over => Err(why),
    }
}

/// Tells a handler that has a transaction to stop. Clones tell the same handler.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<StopSignal>);

/// Tells any number of listeners, once, that it is time to stop.
#[derive(Debug, Default)]
pub(super) struct StopSignal {
    told: AtomicBool,
    now: Notify,
}

impl Stop {
    /// Tells the handler to stop.
    pub fn tell(&self) {
        self.0.tell();
    }

    /// Resolves when the handler is told to stop.
    pub async fn told(&self) {
        self.0.told().await;
    }
}

impl StopSignal {
    /// Returns whether nobody had told them before.
    pub(super) fn tell(&self) -> bool {
        let is_first = !self.told.swap(true, Ordering::AcqRel);
        self.now.notify_waiters();
        is_first
    }

    pub(super) fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    pub(super) async fn told(&self) {
        // Listen before looking, so that no change in between is missed.
        let mut now = std::pin::pin!(self.now.notified());
        now.as_mut().enable();
        if !self.is_told() {
            now.await;
        }
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
    /// grace, which is then a tenth of it, at most [`Policy::LONGEST_GRACE`].
    #[must_use]
    pub fn new(policy: &Policy, of_store: Option<Duration>) -> Self {
        let shorter = |one: Option<Duration>, other| one.into_iter().chain(other).min();
        let timeout = policy.transaction_timeout;
        let of_store = Self::of_store(of_store);
        Self {
            told: shorter(timeout, of_store.told),
            dropped: shorter(timeout.map(|time| time + grace(time)), of_store.dropped),
        }
    }

    /// The limit of a store alone.
    pub(super) fn of_store(limit: Option<Duration>) -> Self {
        Self {
            told: limit.map(|limit| limit - grace(limit / 10)),
            dropped: limit,
        }
    }

    /// Tells the handler to stop when its time is over, or when the session of its transaction has
    /// ended (see [`TransactionStore::session_over`](crate::TransactionStore::session_over)). Resolves
    /// when it must be dropped: a session that has ended leaves it
    /// [`Policy::LONGEST_GRACE`](crate::Policy::LONGEST_GRACE).
    pub async fn over(
        self,
        stop: &Stop,
        session_over: Option<impl Future<Output = ()>>,
    ) -> Interrupted {
        self.over_since(Instant::now(), &stop.0, session_over).await
    }

    /// Like [`over`](Self::over), for a transaction that was begun at `begun`.
    pub(super) async fn over_since(
        self,
        begun: Instant,
        stop: &StopSignal,
        session_over: Option<impl Future<Output = ()>>,
    ) -> Interrupted {
        let until = |limit: Option<Duration>| async move {
            match limit {
                Some(limit) => sleep_until(begun + limit).await,
                None => std::future::pending().await,
            }
        };
        let told = async {
            until(self.told).await;
            stop.tell();
            std::future::pending().await
        };
        let session_over = async {
            match session_over {
                Some(over) => over.await,
                None => std::future::pending().await,
            }
            stop.tell();
            sleep(Policy::LONGEST_GRACE).await;
        };
        tokio::select! {
            () = until(self.dropped) => Interrupted::OverTime,
            why = told => why,
            () = session_over => Interrupted::SessionEnded,
        }
    }
}

fn grace(time: Duration) -> Duration {
    time.min(Policy::LONGEST_GRACE)
}

/// Runs a future in the caller's task. If it is dropped before it has ended, it moves to a task of
/// its own. A timeout around the call, or a client that disconnects, must not stop a handler
/// halfway or prevent the record from being written.
///
/// It is not spawned up front, because rmcp ties requests from server to client to the calling
/// task.
#[must_use = "futures do nothing unless polled"]
pub struct DetachOnDrop<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T: Send + 'static> DetachOnDrop<T> {
    /// Wraps a future.
    pub fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            future: Some(Box::pin(future)),
        }
    }
}

impl<T: Send + 'static> Future for DetachOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(future) = self.future.as_mut() else {
            // Polled after it has ended, which has no defined result.
            return Poll::Pending;
        };
        let output = std::task::ready!(future.as_mut().poll(cx));
        self.future = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for DetachOnDrop<T> {
    fn drop(&mut self) {
        // If this thread is panicking, the future may be in the middle of its own poll.
        if std::thread::panicking() {
            return;
        }
        if let Some(future) = self.future.take()
            && let Ok(runtime) = Handle::try_current()
        {
            drop(runtime.spawn(future.in_current_span()));
        }
    }
}

impl<T: Send + 'static> fmt::Debug for DetachOnDrop<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachOnDrop")
            .field("ended", &self.future.is_none())
            .finish()
    }
}
