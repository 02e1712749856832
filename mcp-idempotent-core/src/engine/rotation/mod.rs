//! A call while its application's secret (or name) is replaced: it has two identities.
//!
//! Processes that know only the previous secret serve beside those that know both. What excludes
//! the ones from the others, and tells them what was done, is a record under the previous id:
//!
//! 1. A process that knows both first claims the previous id as a lease, the **guard**. What it finds
//!    there instead (a record, a running call) decides.
//! 2. Under the guard the call goes on as ever, under the new id.
//! 3. After the record of the new id, the guard is completed with the same result and retention;
//!    where nothing was recorded it is given back.
//!
//! Who ends in between leaves the guard in doubt. A process that knows the previous secret alone
//! answers that the outcome is unknown. One that knows both asks the new id: its record decides. If
//! there is none, the guard may still be the lease of an attempt that somebody else made under the
//! previous secret alone, and acted. So a guard over a transaction has a **mark**, a second lease,
//! under an id made of its own id and token: where that is there, nothing was committed unless the
//! new id says so, and the call runs. Without a mark the policy's
//! [`OnDoubt`](crate::OnDoubt) decides, as for any call in doubt.
//!
//! The downstream keys of lease mode are those of the guard: its id, fingerprint and origin, under the
//! previous secret. So they are the same whichever process makes an attempt, while both serve.

pub(super) mod guard;
mod previous;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use self::guard::{Found, Guard, GuardRules, Guarding, Under};
pub(super) use self::previous::Rotation;
use super::{
    Engine, Inner, Request,
    detach::DetachOnDrop,
    lease::{Heart, Held, SeedOf},
};
use crate::{
    fingerprint::{PreviousIdentity, RecordId},
    policy::OnDoubt,
    record::RecordState,
    store::{Claim, Claimed, Lease, Store, StoreError, StoreErrorKind},
    telemetry::Mode,
};

/// How often a guard in doubt is tried to be taken over that others take over too.
const TAKE_OVERS: u32 = 8;

impl<S: Store> Engine<S> {
    /// What a call is under before it claims its record, while a secret is replaced.
    pub(super) async fn guarded(
        &self,
        guard: &mut Option<Guard>,
        request: &Request<'_>,
        (mode, on_doubt): (Mode, OnDoubt),
        claim: &Claim,
    ) -> Result<Claimed<Option<Under>>, StoreError> {
        let Some(previous) = request.identity.previous.as_deref() else {
            return Ok(Claimed::New(None));
        };
        if let Some(guard) = guard {
            return Ok(Claimed::New(Some(guard.under)));
        }
        let rules = GuardRules::new(
            request.policy,
            &request.identity,
            on_doubt,
            mode == Mode::Transaction,
            self.inner.store.transaction_limit(),
        );
        Ok(match self.inner.guard(claim, *previous, rules).await? {
            Claimed::New(claimed) => Claimed::New(Some(guard.insert(claimed).under)),
            Claimed::InProgress => Claimed::InProgress,
            Claimed::Conflict => Claimed::Conflict,
            Claimed::Found(record) => Claimed::Found(record),
        })
    }
}

impl<S: Store> Inner<S> {
    /// Claims the previous id of a call that is claimed under `claim` next.
    ///
    /// A guard that was on its way when its caller was dropped is given back.
    async fn guard(
        self: &Arc<Self>,
        claim: &Claim,
        previous: PreviousIdentity,
        rules: GuardRules,
    ) -> Result<Claimed<Guard>, StoreError> {
        let (inner, claim) = (Arc::clone(self), claim.clone());
        DetachOnDrop::new(async move { inner.claim_guard(claim, previous, rules).await }).await
    }

    async fn claim_guard(
        &self,
        claim: Claim,
        previous: PreviousIdentity,
        rules: GuardRules,
    ) -> Result<Claimed<Guard>, StoreError> {
        let guarded = Claim {
            id: previous.id,
            fingerprint: previous.fingerprint,
            lease: rules.terms.lease,
            ..claim.clone()
        };
        let mut tries = 0;
        loop {
            let asked = Instant::now();
            let record = match self.store.claim(&guarded).await? {
                Claimed::New(lease) => {
                    let guard = self.hold_guard(lease, &guarded, rules, asked, Found::Free);
                    return Ok(Claimed::New(guard.await?));
                }
                Claimed::InProgress => return Ok(Claimed::InProgress),
                Claimed::Conflict => return Ok(Claimed::Conflict),
                Claimed::Found(record) => record,
            };
            let RecordState::InDoubt { token, .. } = record.state else {
                return Ok(Claimed::Found(record));
            };
            if record.fingerprint != guarded.fingerprint {
                return Ok(Claimed::Found(record));
            }
            let mark = mark_of(&guarded, token);
            let found = match self.store.look_up(&claim).await?.map(|now| now.state) {
                Some(RecordState::InProgress { .. }) => return Ok(Claimed::InProgress),
                // It decides; the guard is taken over to be completed with it.
                Some(RecordState::Completed { .. } | RecordState::Expired) => Found::InDoubt,
                None if self.store.look_up(&mark).await?.is_some() => Found::Marked,
                Some(RecordState::InDoubt { .. }) | None if rules.on_doubt == OnDoubt::Fail => {
                    return Ok(Claimed::Found(record));
                }
                Some(RecordState::InDoubt { .. }) | None => Found::InDoubt,
            };
            let asked = Instant::now();
            tries += 1;
            match self.store.take_over(&guarded, token).await {
                Ok(Some(lease)) => {
                    let guard = self
                        .hold_guard(lease, &guarded, rules, asked, found)
                        .await?;
                    self.remove_mark(&mark).await;
                    return Ok(Claimed::New(guard));
                }
                // Somebody was faster, and decides.
                Ok(None) if tries >= TAKE_OVERS => return Ok(Claimed::InProgress),
                Ok(None) => {}
                Err(error) if error.kind() == StoreErrorKind::Conflict && tries < TAKE_OVERS => {}
                // Nothing may run without protection where an attempt may have acted.
                Err(error) if error.is_transient() => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "a call in doubt could not be taken over"
                    );
                    return Ok(Claimed::Found(record));
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn hold_guard(
        &self,
        lease: Lease,
        guarded: &Claim,
        rules: GuardRules,
        asked: Instant,
        found: Found,
    ) -> Result<Guard, StoreError> {
        let under = Under {
            id: guarded.id,
            fingerprint: guarded.fingerprint,
            origin: lease.origin,
            in_doubt: found == Found::InDoubt,
        };
        let mark = mark_of(guarded, lease.token);
        let mut guarding = Guarding {
            held: self.keep_guard(lease, guarded, rules, asked),
            mark: None,
            rules,
        };
        if rules.transaction {
            let asked = Instant::now();
            match self.store.claim(&mark).await {
                Ok(Claimed::New(lease)) => {
                    guarding.mark = Some(self.keep_guard(lease, &mark, rules, asked));
                }
                // No other call has its id. Without it a crash leaves the call in doubt.
                Ok(_) => {}
                Err(error) => {
                    drop(Guard::new(guarding, under, found));
                    return Err(error);
                }
            }
        }
        Ok(Guard::new(guarding, under, found))
    }

    fn keep_guard(
        &self,
        lease: Lease,
        claim: &Claim,
        rules: GuardRules,
        asked: Instant,
    ) -> Arc<Held<S>> {
        // Nobody asks a guard for a downstream key.
        let seed_of = SeedOf {
            id: claim.id,
            fingerprint: claim.fingerprint,
            origin: lease.origin,
            secret: None,
        };
        let held = Arc::new(Held::new(
            (Arc::clone(&self.store), Arc::<Heart<S>>::clone(&self.heart)),
            lease,
            rules.terms,
            asked,
            seed_of,
            claim.call.clone(),
        ));
        self.heart.keep(&held);
        held
    }

    /// Nobody asks for the mark of a guard that was taken over.
    async fn remove_mark(&self, mark: &Claim) {
        let removed = async {
            if let Some(record) = self.store.look_up(mark).await?
                && let RecordState::InDoubt { token, .. } = record.state
                && let Some(lease) = self.store.take_over(mark, token).await?
            {
                self.store.release(&lease, Duration::ZERO).await?;
            }
            Ok::<_, StoreError>(())
        };
        if let Err(error) = removed.await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the mark of an attempt that was interrupted could not be removed"
            );
        }
    }
}

fn mark_of(guarded: &Claim, token: i64) -> Claim {
    Claim {
        id: RecordId::of_guard_mark(guarded.id, token),
        ..guarded.clone()
    }
}
