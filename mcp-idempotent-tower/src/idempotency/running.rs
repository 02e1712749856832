//! Counts running handlers, so that a shutdown can wait for them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};

/// Counts the handlers that run under a claim, including those whose caller is gone.
#[derive(Clone, Default)]
pub(super) struct Running(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    running: AtomicUsize,
    none: Notify,
}

impl Running {
    pub(super) fn one_more(&self) -> One {
        self.0.running.fetch_add(1, Ordering::SeqCst);
        One(Arc::clone(&self.0))
    }

    pub(super) fn count(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    pub(super) async fn drain(&self, within: Duration) -> Result<(), StillRunning> {
        let drained = timeout(within, async {
            loop {
                // Listen before counting, or the last handler could end unheard in between.
                let mut none = std::pin::pin!(self.0.none.notified());
                none.as_mut().enable();
                if self.count() == 0 {
                    return;
                }
                none.await;
            }
        });
        match drained.await {
            Ok(()) => Ok(()),
            Err(_) => match self.count() {
                0 => Ok(()),
                running => Err(StillRunning { running }),
            },
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Running").field(&self.count()).finish()
    }
}

/// One running handler. Dropped when the handler has ended and its record is written.
#[derive(Debug)]
pub(crate) struct One(Arc<Count>);

impl Drop for One {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.none.notify_waiters();
        }
    }
}

/// Handlers were still running at the deadline. They go on until the runtime ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StillRunning {
    /// How many.
    pub running: usize,
}

impl fmt::Display for StillRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tool calls still ran at the deadline", self.running)
    }
}

impl std::error::Error for StillRunning {}
