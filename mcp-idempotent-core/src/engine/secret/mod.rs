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
//! | only *s* | *s* | serves. If there is a successor *n*, it keeps unaware *n* alive |
//! | only *s* | another one, with *s* as its successor | is refused as long as unaware *n* exists. After that, it writes *s* as secret *n* + 1, and serves |
//! | *s*, previously *p* | *p* | writes unaware *n* and successor *n*, and serves under both |
//! | *s*, previously *p* | *s* | serves under both |
//! | anything else | | is refused |

mod state;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use self::state::{Answer, State};
pub(super) use self::state::{SecretCheck, Unchecked};
use super::{Engine, Inner};
use crate::{
    error::Refusal,
    fingerprint::{CheckRecord, Fingerprint, check_fingerprint},
    policy::Policy,
    record::{Record, RecordState},
    scope::Application,
    store::{CallInfo, Claim, Claimed, Completion, Lease, Store, StoreError, StoreErrorKind},
};

/// Practically for ever, but without overflow in any store.
const KEPT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The shortest time between two questions of a serving process. They run beside its calls.
const CHECKED_EVERY: Duration = Duration::from_secs(10);

/// How long a yes counts if no question follows it. A process that had no calls did not keep its
/// "unaware" alive, so meanwhile the application may have moved on to another secret.
const BELIEVED_FOR: Duration = CHECKED_EVERY.saturating_mul(2);

/// The longest time that a question may take, and that a call waits for the answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// The tool name that an operator sees on these records.
pub(super) const TOOL: &str = "mcp-idempotent/secret";

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
    /// store could not be reached. Calls are refused for the same reasons.
    pub async fn verify_secret(&self) -> Result<(), Refusal> {
        let answer = self.inner.question().await;
        self.inner.learn(&answer);
        answer.map_err(Unchecked::into_refusal)
    }
}

impl<S: Store> Inner<S> {
    /// Whether calls may be served. It waits for the store until the store's first yes, and after a
    /// time without calls.
    pub(super) async fn check_secret(self: &Arc<Self>) -> Answer {
        let mut asking = {
            let mut state = self.secret_check.lock();
            match &mut *state {
                State::Fits(asked) if asked.elapsed() < BELIEVED_FOR => {
                    if asked.elapsed() >= CHECKED_EVERY {
                        *asked = Instant::now();
                        drop(self.ask());
                    }
                    return Ok(());
                }
                // A question gets no answer if its runtime was shut down.
                State::Asking(answer) if answer.has_changed().is_ok() => answer.clone(),
                State::Asking(_) | State::Unknown | State::Fits(_) => {
                    let answer = self.ask();
                    *state = State::Asking(answer.clone());
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
    fn ask(self: &Arc<Self>) -> watch::Receiver<Option<Answer>> {
        let (answered, answer) = watch::channel(None);
        let inner = Arc::clone(self);
        drop(tokio::spawn(async move {
            let answer = inner.question().await;
            inner.learn(&answer);
            drop(answered.send(Some(answer)));
        }));
        answer
    }

    fn learn(&self, answer: &Answer) {
        let mut state = self.secret_check.lock();
        *state = match (answer, &*state) {
            (Ok(()), _) => State::Fits(Instant::now()),
            // If the store is unavailable, its own errors refuse the calls.
            (Err(Unchecked::Store(error)), State::Fits(asked)) => {
                tracing::warn!(
                    error = error as &dyn std::error::Error,
                    "the store could not be asked again about the secret"
                );
                State::Fits(*asked)
            }
            (Err(Unchecked::AnotherSecret | Unchecked::TooEarly), State::Fits(_)) => {
                tracing::error!(
                    "the application now has another secret; this process refuses its calls"
                );
                State::Unknown
            }
            (Err(_), _) => State::Unknown,
        };
    }

    async fn question(&self) -> Answer {
        timeout(ANSWERED_WITHIN, self.secret_fits())
            .await
            .unwrap_or_else(|_| Err(Unchecked::Store(unanswered())))
    }

    async fn secret_fits(&self) -> Answer {
        let ours = check_fingerprint(self.secret.as_ref());
        let Some(rotation) = &self.rotation else {
            return self.fits(&self.application, ours).await;
        };
        let previous = check_fingerprint(rotation.secret.as_ref());
        if rotation.application != self.application {
            self.fits(&rotation.application, previous).await?;
            return self.fits(&self.application, ours).await;
        }
        let (number, current) = self.current(&self.application, previous).await?;
        if current == ours {
            return Ok(());
        }
        if current != previous {
            return Err(Unchecked::AnotherSecret);
        }
        let kept = rotation.period;
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
    async fn fits(&self, application: &Application, ours: Fingerprint) -> Answer {
        let (number, current) = self.current(application, ours).await?;
        let successor = self
            .look(application, CheckRecord::Successor(number))
            .await?;
        if current == ours {
            if let Some(successor) = successor {
                let kept = period(&successor);
                self.keep_unaware(application, number, successor.fingerprint, kept)
                    .await?;
            }
            return Ok(());
        }
        if successor.is_none_or(|successor| successor.fingerprint != ours) {
            return Err(Unchecked::AnotherSecret);
        }
        if self
            .look(application, CheckRecord::Unaware(number))
            .await?
            .is_some()
        {
            return Err(Unchecked::TooEarly);
        }
        let next = CheckRecord::Secret(number + 1);
        agree(self.leave(application, next, ours, Bytes::new()).await?)
    }

    /// The number and check value of the application's secret. If the store has none yet, `first` is
    /// written.
    async fn current(
        &self,
        application: &Application,
        first: Fingerprint,
    ) -> Result<(u64, Fingerprint), Unchecked> {
        let secret = CheckRecord::Secret(0);
        let found = self.look(application, secret).await?;
        let mut current = match found {
            Some(record) if record.fingerprint != first => record.fingerprint,
            Some(record) if !matches!(record.state, RecordState::InDoubt { .. }) => first,
            // There is none, or its writer ended before the record was completed.
            _ if self.leave(application, secret, first, Bytes::new()).await? => first,
            // Another process was faster.
            _ => {
                let record = self.look(application, secret).await?;
                record.ok_or(Unchecked::AnotherSecret)?.fingerprint
            }
        };
        let mut number = 0;
        while let Some(record) = self
            .look(application, CheckRecord::Secret(number + 1))
            .await?
        {
            number += 1;
            current = record.fingerprint;
        }
        Ok((number, current))
    }

    async fn look(
        &self,
        application: &Application,
        record: CheckRecord,
    ) -> Result<Option<Record>, Unchecked> {
        let claim = check_claim(application, record, check_fingerprint(None));
        Ok(self.store.look_up(&claim).await?)
    }

    /// Writes a check value for good, unless there is one already. Returns whether the store now has
    /// this value.
    async fn leave(
        &self,
        application: &Application,
        record: CheckRecord,
        value: Fingerprint,
        response: Bytes,
    ) -> Result<bool, Unchecked> {
        let claim = check_claim(application, record, value);
        match self.store.claim(&claim).await? {
            Claimed::New(lease) => self.keep(&lease, response).await,
            // Its writer ended before the record was completed.
            Claimed::Found(Record {
                fingerprint,
                state: RecordState::InDoubt { token, .. },
            }) if fingerprint == value => {
                if let Some(lease) = self.store.take_over(&claim, token).await? {
                    self.keep(&lease, response).await;
                }
            }
            Claimed::Found(record) => return Ok(record.fingerprint == value),
            // The same value: another process with the same secret is writing it.
            Claimed::InProgress => {}
            Claimed::Conflict => return Ok(false),
        }
        Ok(true)
    }

    /// If this fails, the value still counts, and the next process that asks completes it.
    async fn keep(&self, lease: &Lease, response: Bytes) {
        let completion = Completion::new(Some(response), KEPT);
        if let Err(error) = self.store.complete(lease, completion).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the check value of the secret could not be stored for good"
            );
        }
    }

    /// Writes a lease and lets it lapse. Its record stays until `kept` after its last renewal, by
    /// the store's clock.
    async fn keep_unaware(
        &self,
        application: &Application,
        number: u64,
        successor: Fingerprint,
        kept: Duration,
    ) -> Result<(), StoreError> {
        let mut claim = check_claim(application, CheckRecord::Unaware(number), successor);
        claim.lease = BELIEVED_FOR;
        claim.in_doubt_retention = kept;
        if let Claimed::Found(record) = self.store.claim(&claim).await?
            && let RecordState::InDoubt { token, .. } = record.state
        {
            self.store.take_over(&claim, token).await?;
        }
        Ok(())
    }
}

impl From<StoreError> for Unchecked {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

const fn agree(yes: bool) -> Answer {
    if yes {
        Ok(())
    } else {
        Err(Unchecked::AnotherSecret)
    }
}

/// How long records must be found under both secrets, according to the successor.
fn period(successor: &Record) -> Duration {
    match &successor.state {
        RecordState::Completed {
            response: Some(response),
            ..
        } => <[u8; 8]>::try_from(&response[..]).map_or(Policy::DEFAULT_RETENTION, |micros| {
            Duration::from_micros(u64::from_be_bytes(micros))
        }),
        _ => Policy::DEFAULT_RETENTION,
    }
}

fn check_claim(application: &Application, record: CheckRecord, value: Fingerprint) -> Claim {
    let call = CallInfo::new(TOOL, None);
    Claim::new(record.id(application), value, call)
}

fn unanswered() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "the store did not answer which secret is the application's",
    )
}
