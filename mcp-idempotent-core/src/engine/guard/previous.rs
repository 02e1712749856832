//! A call while its application's secret (or name) is being replaced. It has two identities.
//!
//! Processes that only know the previous secret serve beside those that know both. A record under
//! the previous id keeps the two kinds from running the same call, and tells each what the other
//! did:
//!
//! 1. A process that knows both secrets first claims the previous id as a lease, the **guard**. If
//!    it finds a record or a running call there instead, that decides.
//! 2. Under the guard the call continues as usual, under the new id.
//! 3. The record of the new id and the guard are completed in one step, with the same result, or
//!    neither is. If nothing was recorded, the guard is released. If the guard is lost meanwhile,
//!    because an operator resolved it, the attempt is lost too.
//!
//! A process that ends in between leaves the guard in doubt. A process that only knows the previous
//! secret then answers that the outcome is unknown. One that knows both looks at the new id, whose
//! record decides.
//!
//! If there is no such record, the lease may not be a guard at all: it may belong to an attempt
//! that acted, in a process that only knows the previous secret. To tell the two apart, a
//! transaction's guard has a **witness**: a second lease, under an id made from the guard's own id and
//! token. If there is a witness, nothing was committed unless the new id says so, and the call runs.
//! Without a witness the policy's [`OnDoubt`](crate::OnDoubt) decides, as for any call in doubt.
//!
//! In lease mode the downstream keys come from the guard: its id, fingerprint and origin, under the
//! previous secret. So while both kinds of process serve, an attempt sends the same keys whichever
//! of them makes it.

use std::sync::Arc;

use super::{
    of_call::{Found, Guard},
    terms::GuardTerms,
    witness::witness_of,
};
use crate::{
    engine::{
        Engine, Inner, Request,
        handler::DetachOnDrop,
        plan::{Failed, ModeRules},
        take_over::Taken,
    },
    fingerprint::PreviousIdentity,
    policy::OnDoubt,
    record::{Record, RecordState},
    store::{Claim, Claimed, Store, StoreError},
    telemetry::Mode,
};

impl<S: Store> Engine<S> {
    /// Claims the previous id of a call that will next be claimed under `claim`.
    ///
    /// If the caller is dropped meanwhile, the guard is given back.
    pub(super) async fn previous_guard(
        &self,
        request: &Request<'_>,
        rules: ModeRules,
        claim: &Claim,
        previous: PreviousIdentity,
    ) -> Result<Claimed<Guard>, Failed> {
        let (inner, claim) = (Arc::clone(&self.inner), claim.clone());
        let terms = GuardTerms::of_previous(
            request.policy,
            &request.identity,
            rules.on_doubt,
            rules.mode == Mode::Transaction,
            inner.store.transaction_limit(),
        );
        DetachOnDrop::new(async move { inner.claim_guard(claim, previous, terms).await }).await
    }
}

impl<S: Store> Inner<S> {
    async fn claim_guard(
        &self,
        claim: Claim,
        previous: PreviousIdentity,
        terms: GuardTerms,
    ) -> Result<Claimed<Guard>, Failed> {
        let guarded = Claim {
            id: previous.id,
            fingerprint: previous.fingerprint,
            lease: terms.timing.lease,
            ..claim.clone()
        };
        let claimed = self
            .claim_or_take_over(&guarded, |record, token| {
                self.find_guard(&claim, &guarded, terms, record, token)
            })
            .await?;
        let Taken { lease, asked, over } = match claimed.held() {
            Ok(taken) => taken,
            Err(found) => return Ok(found),
        };
        let Some((found, record, witness)) = over else {
            let guard = self.hold_guard(lease, &guarded, terms, asked, Found::Free);
            return Ok(Claimed::New(guard.await?));
        };
        let guard = self.hold_guard(lease, &guarded, terms, asked, found).await;
        let mut guard = guard.map_err(|error| Failed::after(Some(record.clone()), error))?;
        self.remove_witness(&witness).await;
        if found == Found::InDoubt {
            guard.in_doubt = Some(record);
        }
        Ok(Claimed::New(guard))
    }

    /// Decides whether a guard in doubt is taken over. Returns what it says, its record, and its witness.
    async fn find_guard(
        &self,
        claim: &Claim,
        guarded: &Claim,
        terms: GuardTerms,
        record: Record,
        token: i64,
    ) -> Result<Claimed<(Found, Record, Claim)>, StoreError> {
        let witness = witness_of(guarded, token);
        let own = self.store.look_up(claim).await?;
        let found = match own.map(|own| own.state) {
            Some(RecordState::InProgress { .. }) => return Ok(Claimed::InProgress),
            // The record decides. The guard is taken over, to be completed with it.
            Some(RecordState::Completed { .. } | RecordState::Expired) => Found::InDoubt,
            None if self.store.look_up(&witness).await?.is_some() => Found::Witnessed,
            Some(RecordState::InDoubt { .. }) | None if terms.on_doubt == OnDoubt::Fail => {
                return Ok(Claimed::Found(record));
            }
            Some(RecordState::InDoubt { .. }) | None => Found::InDoubt,
        };
        Ok(Claimed::New((found, record, witness)))
    }
}
