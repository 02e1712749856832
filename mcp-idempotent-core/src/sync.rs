//! What the tasks of a process meet at, for the files of the engine whose memory they share.
//!
//! These are only names. `tests/schedule` compiles those files once more, where the same names stand for
//! types whose every use is a point at which another task may go on.

pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize},
};

pub(crate) use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
};
