//! The records that say which secret an application has.

use std::time::Duration;

use bytes::Bytes;

use super::state::{BELIEVED_FOR, Unchecked};
use crate::{
    engine::Inner,
    fingerprint::{CheckRecord, Fingerprint, check_fingerprint},
    policy::Policy,
    record::{Record, RecordState},
    scope::Application,
    store::{CallInfo, Claim, Claimed, Completion, Lease, Store, StoreError},
};

/// Practically for ever, but without overflow in any store.
const KEPT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl<S: Store> Inner<S> {
    /// Announces that a process with only secret `number` serves. The process announces itself first
    /// and then checks the secret again; the one that changes the secret looks for announcements afterwards.
    /// So one of the two always notices the other.
    pub(super) async fn stay_unaware(
        &self,
        application: &Application,
        number: u64,
        successor: &Record,
    ) -> Result<(), Unchecked> {
        let kept = period(successor);
        let new = self
            .keep_unaware(application, number, successor.fingerprint, kept)
            .await?;
        let next = CheckRecord::Secret(number + 1);
        if self.look(application, next).await?.is_none() {
            return Ok(());
        }
        if let Some(lease) = new {
            self.store.release(&lease, Duration::ZERO).await?;
        }
        Err(Unchecked::AnotherSecret)
    }

    pub(super) async fn is_unaware(
        &self,
        application: &Application,
        number: u64,
    ) -> Result<bool, Unchecked> {
        let unaware = CheckRecord::Unaware(number);
        Ok(self.look(application, unaware).await?.is_some())
    }

    /// The number and check value of the application's secret. If the store has none yet, `first` is
    /// written.
    pub(super) async fn current(
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

    pub(super) async fn look(
        &self,
        application: &Application,
        record: CheckRecord,
    ) -> Result<Option<Record>, Unchecked> {
        let claim = check_claim(application, record, check_fingerprint(None));
        Ok(self.store.look_up(&claim).await?)
    }

    /// Writes a check value for good, unless there is one already. Returns whether the store now has
    /// this value.
    pub(super) async fn leave(
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
    pub(super) async fn keep(&self, lease: &Lease, response: Bytes) {
        let completion = Completion::new(Some(response), KEPT);
        if let Err(error) = self.store.complete(lease, completion).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the check value of the secret could not be stored for good"
            );
        }
    }

    /// Writes a lease and lets it lapse. Its record stays until `kept` after its last renewal, by
    /// the store's clock. Returns the lease if there was no such record.
    pub(super) async fn keep_unaware(
        &self,
        application: &Application,
        number: u64,
        successor: Fingerprint,
        kept: Duration,
    ) -> Result<Option<Lease>, StoreError> {
        let mut claim = check_claim(application, CheckRecord::Unaware(number), successor);
        claim.lease = BELIEVED_FOR;
        claim.in_doubt_retention = kept;
        match self.store.claim(&claim).await? {
            Claimed::New(lease) => return Ok(Some(lease)),
            Claimed::Found(Record {
                state: RecordState::InDoubt { token, .. },
                ..
            }) => {
                self.store.take_over(&claim, token).await?;
            }
            Claimed::Found(_) | Claimed::InProgress | Claimed::Conflict => {}
        }
        Ok(None)
    }
}

/// How long records must be found under both secrets, according to the successor.
pub(super) fn period(successor: &Record) -> Duration {
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
    let call = CallInfo::internal("secret");
    let mut claim = Claim::new(record.id(application), value, call);
    claim.application = Some(application.clone());
    claim
}
