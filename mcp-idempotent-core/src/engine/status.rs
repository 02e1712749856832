//! What became of a call.

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
    /// Answers what became of a call, without running or claiming anything. A record past its
    /// retention is reported while its tombstone is kept.
    ///
    /// # Errors
    ///
    /// The store could not be asked, or knows the application under another secret. Nothing was
    /// changed, and nothing is said of the call's effect.
    pub async fn inspect(&self, call: CallInfo, identity: &Identity) -> Result<Inspected, Refusal> {
        self.look(call, identity)
            .await
            .map_err(Refusal::into_unanswered)
    }

    async fn look(&self, call: CallInfo, identity: &Identity) -> Result<Inspected, Refusal> {
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
        // What is certain under the new id is certain; else a process that knows the previous secret
        // alone may know more.
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
            // Asked for under the identity that it was looked for with.
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
