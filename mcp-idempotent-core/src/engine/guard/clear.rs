//! Whether a call may claim its record.

use super::{clearance::Clearance, of_call::Under};
use crate::{
    engine::{
        Engine, Request,
        plan::{Failed, ModeRules},
    },
    error::Refusal,
    store::{Claim, Claimed, Store, StoreError},
    telemetry::ObservedCall,
};

/// Why a call was not cleared.
pub(in crate::engine) enum Uncleared {
    Refused(Refusal),
    Failed(Failed),
}

impl<S: Store> Engine<S> {
    /// Lets a call claim its record, under a guard if it needs one. If the answer is not
    /// [`Claimed::New`], something was found that decides the call.
    pub(in crate::engine) async fn clear(
        &self,
        clearance: &mut Clearance,
        request: &Request<'_>,
        observed: &ObservedCall,
        rules: ModeRules,
        claim: &Claim,
    ) -> Result<Claimed<Option<Under>>, Uncleared> {
        match clearance {
            Clearance::Guard(guard) => return Ok(Claimed::New(Some(guard.under.clone()))),
            Clearance::Rotated(_) => return Ok(Claimed::New(None)),
            Clearance::Nothing => {}
        }
        let identity = &request.identity;
        if let Some(equal) = identity.equal.as_deref() {
            self.clear_of_equal_calls(clearance, request, observed, rules, claim, *equal)
                .await
        } else if let Some(previous) = identity.previous.as_deref() {
            let guard = self
                .previous_guard(request, rules, claim, *previous)
                .await?;
            Ok(guard.map(|guard| Some(clearance.hold(guard))))
        } else {
            Ok(Claimed::New(None))
        }
    }
}

impl From<Refusal> for Uncleared {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Failed> for Uncleared {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

impl From<StoreError> for Uncleared {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}
