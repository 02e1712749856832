//! What a process knows about its secret, and why it may not rely on it.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::error::{SecretError, SecretErrorKind};
use crate::{error::Refusal, refusal, store::StoreError};

/// The shortest time between two questions of a serving process. They run beside its calls.
pub(super) const CHECKED_EVERY: Duration = Duration::from_secs(10);

/// How long a confirmation is trusted, counted from when the store was asked. A process that had no
/// calls, or whose checks fail, does not keep its "unaware" alive, so meanwhile the application may have
/// moved on to another secret.
pub(super) const BELIEVED_FOR: Duration = CHECKED_EVERY.saturating_mul(2);

/// Why this process may not rely on its secret.
#[derive(Debug, Clone)]
pub(in crate::engine) enum Unchecked {
    AnotherSecret,
    /// Results under the previous secret are still kept.
    TooEarly,
    /// Calls under the previous secret are not settled.
    Unsettled,
    Store(StoreError),
}

impl Unchecked {
    pub(super) fn into_error(self) -> SecretError {
        SecretError::new(match self {
            Self::AnotherSecret => SecretErrorKind::AnotherSecret,
            Self::TooEarly => SecretErrorKind::TooEarly,
            Self::Unsettled => SecretErrorKind::Unsettled,
            Self::Store(error) => return SecretError::of_store(error),
        })
    }

    pub(in crate::engine) fn into_refusal(self) -> Refusal {
        match self {
            Self::AnotherSecret => refusal::another_secret(),
            Self::TooEarly => refusal::previous_secret_needed(),
            Self::Unsettled => refusal::previous_secret_has_unsettled_calls(),
            Self::Store(error) => refusal::store_unavailable(error),
        }
    }
}

/// What this process knows about its secret.
#[derive(Debug, Default)]
pub(in crate::engine) struct SecretCheck {
    state: Mutex<State>,
}

pub(super) type Checked = Result<(), Unchecked>;

#[derive(Debug, Default)]
pub(super) enum State {
    /// Not checked yet, or the last check did not confirm the secret. The next call checks again,
    /// because the cause may be repaired while the server runs.
    #[default]
    Unknown,
    /// All calls wait for the check that began at this moment.
    Asking(Instant, watch::Receiver<Option<Checked>>),
    /// The store has confirmed the secret.
    Fits {
        /// When that check began. It is trusted for a time from then on.
        yes: Instant,
        /// When the last check began, whatever came of it.
        asked: Instant,
    },
}

impl SecretCheck {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No user code runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
