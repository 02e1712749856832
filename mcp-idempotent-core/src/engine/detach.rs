//! A running attempt outlives its caller.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::runtime::Handle;
use tracing::Instrument as _;

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

impl<T: Send + 'static> std::fmt::Debug for DetachOnDrop<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DetachOnDrop")
            .field("ended", &self.future.is_none())
            .finish()
    }
}
