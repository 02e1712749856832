//! An application has one secret, or none, and the store remembers which.
//!
//! The store keeps this in records that are numbered from 0:
//!
//! | Record | Says | Kept |
//! | --- | --- | --- |
//! | secret *n* | the check value of the application's secret, or of having none. The highest *n* counts | for good |
//! | successor *n* | the check value of the secret that will follow, and how long records must be found under both. Written by the first process with [`with_previous_secret`](super::EngineBuilder::with_previous_secret) | for good |
//! | unaware *n* | that there are still processes that know only secret *n* | for the successor's time after the last of them was seen |
//!
//! | A process with … | that finds secret *n* to be … | does this |
//! | --- | --- | --- |
//! | any secret | absent | writes its own (or its previous one) as secret 0 |
//! | only *s* | *s* | serves. If there is a successor *n*, it keeps unaware *n* alive, and is refused if secret *n* + 1 has appeared by then. It is also refused as long as unaware *n* - 1 exists |
//! | only *s* | another one, with *s* as its successor | is refused as long as unaware *n* exists, or calls from its time are not settled. After that, it writes *s* as secret *n* + 1, and serves unless unaware *n* has appeared by then |
//! | *s*, previously *p* | *p* | writes unaware *n* and successor *n*, and serves under both |
//! | *s*, previously *p* | *s* | serves under both |
//! | anything else | | is refused |

mod error;
mod records;
mod state;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

pub use self::error::{SecretError, SecretErrorKind};
pub(super) use self::state::{SecretCheck, Unchecked};
use self::{
    records::period,
    state::{BELIEVED_FOR, CHECKED_EVERY, Checked, State},
};
use super::{Engine, Inner};
use crate::{
    fingerprint::{CheckRecord, Fingerprint, check_fingerprint},
    record::RecordState,
    scope::Application,
    store::{Store, StoreError, StoreErrorKind},
};

/// How long one check may take, and how long a call waits for it.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

impl<S: Store> Engine<S> {
    /// How often, at most, a serving engine asks the store again which secret the application has.
    /// If the secret has changed, a process notices after this much time with calls, plus one
    /// question.
    pub const SECRET_CHECKED_EVERY: Duration = CHECKED_EVERY;

    /// Asks the store whether this engine has the application's secret (or has none, if the
    /// application has none). Call it when the server starts, so that callers are not the first to
    /// find out. The first call asks too. It takes at most 10 seconds.
    ///
    /// For which secrets fit, and how to replace one, see [`EngineBuilder::with_previous_secret`].
    ///
    /// [`EngineBuilder::with_previous_secret`]: super::EngineBuilder::with_previous_secret
    ///
    /// # Errors
    ///
    /// The records were made under another secret, the previous secret is still needed, or the
    /// store could not be reached. Calls are refused for the same reasons. The error says what to do.
    pub async fn verify_secret(&self) -> Result<(), SecretError> {
        let asked = Instant::now();
        let answer = self.inner.question().await;
        self.inner.learn(asked, &answer);
        answer.map_err(Unchecked::into_error)
    }
}

impl<S: Store> Inner<S> {
    /// Whether calls may be served. It waits until the store has confirmed the secret for the first
    /// time, and again when the last confirmation is too old.
    pub(super) async fn check_secret(self: &Arc<Self>) -> Checked {
        let mut asking = {
            let mut state = self.secret_check.lock();
            match &mut *state {
                State::Fits { yes, asked } if yes.elapsed() < BELIEVED_FOR => {
                    if asked.elapsed() >= CHECKED_EVERY {
                        *asked = Instant::now();
                        drop(self.ask(*asked));
                    }
                    return Ok(());
                }
                // A question gets no answer if its runtime was shut down.
                State::Asking(_, answer) if answer.has_changed().is_ok() => answer.clone(),
                State::Asking(..) | State::Unknown | State::Fits { .. } => {
                    let asked = Instant::now();
                    let answer = self.ask(asked);
                    *state = State::Asking(asked, answer.clone());
                    answer
                }
            }
        };
        let answer = asking.wait_for(Option::is_some).await;
        answer
            .ok()
            .and_then(|answer| answer.clone())
            .unwrap_or_else(|| Err(Unchecked::Store(unanswered())))
    }

    /// Runs in a task of its own. It belongs to no call, so no call can cancel it.
    fn ask(self: &Arc<Self>, asked: Instant) -> watch::Receiver<Option<Checked>> {
        let (answered, answer) = watch::channel(None);
        let inner = Arc::clone(self);
        drop(tokio::spawn(async move {
            let answer = inner.question().await;
            inner.learn(asked, &answer);
            drop(answered.send(Some(answer)));
        }));
        answer
    }

    /// Learns the result of the check that began at this moment.
    fn learn(&self, asked: Instant, answer: &Checked) {
        let mut state = self.secret_check.lock();
        *state = match (answer, &*state) {
            (Ok(()), _) => State::Fits { yes: asked, asked },
            // If the store is unavailable, its own errors refuse the calls.
            (Err(Unchecked::Store(error)), State::Fits { .. }) => {
                tracing::warn!(
                    error = error as &dyn std::error::Error,
                    "the secret could not be checked again"
                );
                return;
            }
            // A later question has taken its place.
            (Err(Unchecked::Store(_)), State::Asking(later, _)) if *later > asked => return,
            (Err(Unchecked::Store(_)), _) => State::Unknown,
            (Err(_), state) => {
                if matches!(state, State::Fits { .. }) {
                    tracing::error!(
                        "the application now has another secret; this process refuses its calls"
                    );
                }
                State::Unknown
            }
        };
    }

    async fn question(&self) -> Checked {
        timeout(ANSWERED_WITHIN, self.secret_fits())
            .await
            .unwrap_or_else(|_| Err(Unchecked::Store(unanswered())))
    }

    async fn secret_fits(&self) -> Checked {
        let ours = check_fingerprint(self.secret.as_ref());
        let Some(replacement) = &self.replacement else {
            return self.fits(&self.application, ours).await;
        };
        let previous = check_fingerprint(replacement.secret.as_ref());
        if replacement.application != self.application {
            self.fits(&replacement.application, previous).await?;
            return self.fits(&self.application, ours).await;
        }
        let (number, current) = self.current(&self.application, previous).await?;
        if current == ours {
            return Ok(());
        }
        if current != previous {
            return Err(Unchecked::AnotherSecret);
        }
        let kept = replacement.period;
        let successor = self
            .look(&self.application, CheckRecord::Successor(number))
            .await?;
        if let Some(successor) = successor
            && matches!(successor.state, RecordState::Completed { .. })
        {
            return agree(successor.fingerprint == ours);
        }
        // Until now, processes that only know the previous secret may have served calls.
        self.keep_unaware(&self.application, number, ours, kept)
            .await?;
        let micros = u64::try_from(kept.as_micros()).unwrap_or(u64::MAX);
        let response = Bytes::copy_from_slice(&micros.to_be_bytes());
        let announced = CheckRecord::Successor(number);
        agree(
            self.leave(&self.application, announced, ours, response)
                .await?,
        )?;
        self.keep_unaware(&self.application, number, ours, kept)
            .await?;
        Ok(())
    }

    /// For a process with only this secret.
    async fn fits(&self, application: &Application, ours: Fingerprint) -> Checked {
        let (number, current) = self.current(application, ours).await?;
        let successor = self
            .look(application, CheckRecord::Successor(number))
            .await?;
        if current == ours {
            if let Some(successor) = successor {
                self.stay_unaware(application, number, &successor).await?;
            }
            // A process without this secret served while it became the application's.
            if let Some(before) = number.checked_sub(1)
                && self.is_unaware(application, before).await?
            {
                return Err(Unchecked::TooEarly);
            }
            return Ok(());
        }
        let Some(successor) = successor.filter(|successor| successor.fingerprint == ours) else {
            return Err(Unchecked::AnotherSecret);
        };
        if self.is_unaware(application, number).await? {
            return Err(Unchecked::TooEarly);
        }
        // What was made since the last such process is under the new secret too.
        if self.store.has_unsettled(period(&successor)).await? {
            return Err(Unchecked::Unsettled);
        }
        let next = CheckRecord::Secret(number + 1);
        agree(self.leave(application, next, ours, Bytes::new()).await?)?;
        // It may have begun to serve in the meantime.
        if self.is_unaware(application, number).await? {
            return Err(Unchecked::TooEarly);
        }
        Ok(())
    }
}

impl From<StoreError> for Unchecked {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

const fn agree(yes: bool) -> Checked {
    if yes {
        Ok(())
    } else {
        Err(Unchecked::AnotherSecret)
    }
}

fn unanswered() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "the store did not answer which secret is the application's",
    )
}
