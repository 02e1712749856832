//! The locks and channels of the engine, with a point before each use at which another task may go on.
//!
//! Channels and notifications are tokio's own.

use std::{
    cell::RefCell,
    convert::Infallible,
    future::{Future, poll_fn},
    ops::{Deref, DerefMut},
    sync::{LockResult, TryLockError, atomic::Ordering},
    task::{Poll, Waker},
    thread::panicking,
};

pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicUsize};
use shuttle::{
    current::{TaskId, me},
    future::block_on,
};
use tokio::sync::futures::Notified;

/// Another task may go on here.
#[derive(Debug, Default)]
pub(crate) struct Point(AtomicBool);

impl Point {
    pub(crate) fn pass(&self) {
        // A failed test takes itself apart without further ado.
        if !panicking() {
            self.0.load(Ordering::SeqCst);
        }
    }
}

thread_local! {
    /// Which tasks have a lock.
    static LOCKED: RefCell<Vec<TaskId>> = const { RefCell::new(Vec::new()) };
}

/// Whether this task has a lock.
pub(crate) fn has_a_lock() -> bool {
    LOCKED.with_borrow(|locked| locked.contains(&me()))
}

/// Others can get on while a task has it only if that task passes a point.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    point: Point,
    inner: std::sync::Mutex<T>,
    waiting: std::sync::Mutex<Vec<Waker>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            point: Point::default(),
            inner: std::sync::Mutex::new(value),
            waiting: std::sync::Mutex::default(),
        }
    }

    /// shuttle's own has a point more, when it is let go.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        self.point.pass();
        let inner = block_on(poll_fn(|cx| match self.inner.try_lock() {
            Ok(guard) => Poll::Ready(guard),
            Err(TryLockError::Poisoned(error)) => Poll::Ready(error.into_inner()),
            Err(TryLockError::WouldBlock) => {
                self.waiting.lock().unwrap().push(cx.waker().clone());
                Poll::Pending
            }
        }));
        LOCKED.with_borrow_mut(|locked| locked.push(me()));
        Ok(MutexGuard {
            inner: Some(inner),
            waiting: &self.waiting,
        })
    }
}

pub(crate) struct MutexGuard<'a, T> {
    /// `None` only while it is being dropped.
    inner: Option<std::sync::MutexGuard<'a, T>>,
    waiting: &'a std::sync::Mutex<Vec<Waker>>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().unwrap()
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.inner = None;
        LOCKED.with_borrow_mut(|locked| {
            if let Some(mine) = locked.iter().position(|task| *task == me()) {
                locked.swap_remove(mine);
            }
        });
        for waker in self.waiting.lock().unwrap().drain(..) {
            waker.wake();
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Notify {
    point: Point,
    inner: tokio::sync::Notify,
}

impl Notify {
    pub(crate) fn notified(&self) -> Notified<'_> {
        self.point.pass();
        self.inner.notified()
    }

    pub(crate) fn notify_waiters(&self) {
        self.point.pass();
        self.inner.notify_waiters();
    }
}

pub(crate) mod oneshot {
    use std::{
        future::Future,
        pin::Pin,
        task::{Context, Poll},
    };

    use tokio::sync::oneshot::{self, error::RecvError};

    use super::Point;

    pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        let sender = Sender {
            point: Point::default(),
            inner: sender,
        };
        let receiver = Receiver {
            point: Point::default(),
            inner: receiver,
        };
        (sender, receiver)
    }

    pub(crate) struct Sender<T> {
        point: Point,
        inner: oneshot::Sender<T>,
    }

    impl<T> Sender<T> {
        pub(crate) fn send(self, value: T) -> Result<(), T> {
            self.point.pass();
            self.inner.send(value)
        }

        /// Without a point, because it is asked under a lock.
        pub(crate) fn is_closed(&self) -> bool {
            self.inner.is_closed()
        }
    }

    pub(crate) struct Receiver<T> {
        point: Point,
        inner: oneshot::Receiver<T>,
    }

    impl<T> Future for Receiver<T> {
        type Output = Result<T, RecvError>;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            Pin::new(&mut self.inner).poll(cx)
        }
    }

    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            self.point.pass();
        }
    }
}

/// The runtime.
pub(crate) struct Handle;

impl Handle {
    pub(crate) fn try_current() -> Result<Self, Infallible> {
        Ok(Self)
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> shuttle::future::JoinHandle<T> {
        shuttle::future::spawn(future)
    }
}
