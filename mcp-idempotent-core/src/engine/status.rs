//! What became of a call.

use super::{Engine, secret::Unchecked};
use crate::{
    error::Refusal,
    fingerprint::Identity,
    policy::OnExpired,
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
        match self.inner.check_secret(&call).await {
            Ok(()) => {}
            Err(Unchecked::AnotherSecret) => return Err(refusal::another_secret()),
            Err(Unchecked::Store(error)) => return Err(refusal::store_unavailable(error)),
        }
        if self.inner.flights.is_running(identity.id) {
            return Ok(Inspected::InProgress);
        }
        let mut claim = Claim::new(identity.id, identity.fingerprint, call);
        claim.on_expired = OnExpired::Refuse;
        self.inner
            .store
            .inspect(&claim)
            .await
            .map_err(refusal::store_unavailable)
    }
}
