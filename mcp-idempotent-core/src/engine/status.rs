//! Answers what became of a call.

use super::{Engine, secret::Unchecked};
use crate::{
    error::Refusal,
    fingerprint::Identity,
    policy::OnExpired,
    record::{Record, RecordState},
    refusal,
    store::{CallInfo, Claim, Inspected, Store},
};

impl<S: Store> Engine<S> {
    /// Says what became of a call, without running or claiming anything. A record past its
    /// retention is reported for as long as its tombstone is kept.
    ///
    /// # Errors
    ///
    /// The store could not be reached, or holds another secret for this application. Nothing was
    /// changed, and the refusal says nothing about the call's effect.
    pub async fn inspect(&self, call: CallInfo, identity: &Identity) -> Result<Inspected, Refusal> {
        self.look(call, identity)
            .await
            .map_err(Refusal::into_unanswered)
    }

    pub(super) async fn look(
        &self,
        call: CallInfo,
        identity: &Identity,
    ) -> Result<Inspected, Refusal> {
        self.inner
            .check_secret()
            .await
            .map_err(Unchecked::into_refusal)?;
        if self.inner.flights.is_running(identity.id) {
            return Ok(Inspected::InProgress);
        }
        let mut claim = Claim::new(identity.id, identity.fingerprint, call);
        claim.on_expired = OnExpired::Refuse;
        let inspected = self.ask_of(&claim).await?;
        let Some(previous) = identity.previous.as_deref() else {
            return Ok(inspected);
        };
        // If the new id gives a definite answer, it stands. Otherwise a process that only knows the
        // previous secret may have done more.
        if let Inspected::InProgress
        | Inspected::Found(Record {
            state: RecordState::Completed { .. } | RecordState::InProgress { .. },
            ..
        }) = inspected
        {
            return Ok(inspected);
        }
        claim.id = previous.id;
        claim.fingerprint = previous.fingerprint;
        Ok(match (self.ask_of(&claim).await?, inspected) {
            (Inspected::Found(record), Inspected::Found(new))
                if !matches!(record.state, RecordState::Completed { .. }) =>
            {
                Inspected::Found(new)
            }
            // Reported with the fingerprint of the new identity, which is the one the caller
            // compares with.
            (Inspected::Found(record), _) if record.fingerprint == previous.fingerprint => {
                Inspected::Found(Record::new(identity.fingerprint, record.state))
            }
            (Inspected::NotSeen, inspected) => inspected,
            (before, _) => before,
        })
    }

    async fn ask_of(&self, claim: &Claim) -> Result<Inspected, Refusal> {
        self.inner
            .store
            .inspect(claim)
            .await
            .map_err(refusal::store_unavailable)
    }
}
