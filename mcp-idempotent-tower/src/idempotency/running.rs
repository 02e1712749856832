//! Which handlers run, so that a shutdown can wait for them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};

/// Counts the handlers that run under a claim, those whose caller is gone included.
#[derive(Clone, Default)]
pub(crate) struct Executions(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    running: AtomicUsize,
    none: Notify,
}

impl Executions {
    pub(crate) fn enter(&self) -> Running {
        self.0.running.fetch_add(1, Ordering::SeqCst);
        Running(Arc::clone(&self.0))
    }

    pub(crate) fn running(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    pub(crate) async fn drain(&self, within: Duration) -> Result<(), StillRunning> {
        let drained = timeout(within, async {
            loop {
                // Listening before looking: a last one that ends in between is heard.
                let mut none = std::pin::pin!(self.0.none.notified());
                none.as_mut().enable();
                if self.running() == 0 {
                    return;
                }
                none.await;
            }
        });
        match drained.await {
            Ok(()) => Ok(()),
            Err(_) => match self.running() {
                0 => Ok(()),
                running => Err(StillRunning { running }),
            },
        }
    }
}

impl fmt::Debug for Executions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Executions").field(&self.running()).finish()
    }
}

/// One handler that runs. Dropped when it has ended and its record is written.
#[derive(Debug)]
pub(crate) struct Running(Arc<Count>);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.none.notify_waiters();
        }
    }
}

/// Handlers still ran at the deadline. They go on until the runtime ends.
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
