//! Futures that are dropped on their way.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// Drops a future once it has been pending more than `pending` times, unless it is ready earlier.
pub(crate) async fn drop_at<T>(pending: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = pending;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}
