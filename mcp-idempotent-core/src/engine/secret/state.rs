//! What a process knows about its secret, and why it may not rely on it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::{sync::watch, time::Instant};

use crate::{error::Refusal, refusal, store::StoreError};

/// Why this process may not rely on its secret.
#[derive(Debug, Clone)]
pub(in crate::engine) enum Unchecked {
    AnotherSecret,
    TooEarly,
    Store(StoreError),
}

impl Unchecked {
    pub(in crate::engine) fn into_refusal(self) -> Refusal {
        match self {
            Self::AnotherSecret => refusal::another_secret(),
            Self::TooEarly => refusal::previous_secret_needed(),
            Self::Store(error) => refusal::store_unavailable(error),
        }
    }
}

/// What this process knows about its secret.
#[derive(Debug, Default)]
pub(in crate::engine) struct SecretCheck {
    state: Mutex<State>,
}

pub(super) type Answer = Result<(), Unchecked>;

#[derive(Debug, Default)]
pub(super) enum State {
    /// Nobody has asked, or the last answer was not yes. The next call asks again, because the cause
    /// may be repaired while the server runs.
    #[default]
    Unknown,
    /// All calls wait for one question.
    Asking(watch::Receiver<Option<Answer>>),
    /// The answer was yes, and the store was last asked at this moment.
    Fits(Instant),
}

impl SecretCheck {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No user code runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
