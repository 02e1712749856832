//! Which handlers run, so that a shutdown can wait for them.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};

/// Counts the handlers that run under a claim, those whose caller is gone included.
#[derive(Clone, Default)]
pub(crate) struct Executions(Arc<watch::Sender<usize>>);

impl Executions {
    pub(crate) fn enter(&self) -> Running {
        self.0.send_modify(|running| *running += 1);
        Running(Arc::clone(&self.0))
    }

    pub(crate) fn running(&self) -> usize {
        *self.0.borrow()
    }

    pub(crate) async fn drain(&self, within: Duration) -> Result<(), StillRunning> {
        let mut changes = self.0.subscribe();
        // Bound first: the guard that it answers with would not let anybody enter or leave.
        let drained = timeout(within, changes.wait_for(|running| *running == 0))
            .await
            .is_ok();
        match self.running() {
            _ if drained => Ok(()),
            0 => Ok(()),
            running => Err(StillRunning { running }),
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
pub(crate) struct Running(Arc<watch::Sender<usize>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
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
