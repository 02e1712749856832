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
//! transaction's guard has a **mark**: a second lease, under an id made from the guard's own id and
//! token. If there is a mark, nothing was committed unless the new id says so, and the call runs.
//! Without a mark the policy's [`OnDoubt`](crate::OnDoubt) decides, as for any call in doubt.
//!
//! In lease mode the downstream keys come from the guard: its id, fingerprint and origin, under the
//! previous secret. So while both kinds of process serve, an attempt sends the same keys whichever
//! of them makes it.

pub(super) mod guard;
mod previous;
mod rules;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use self::guard::{Found, Guard, GuardLeases, Under, abandon_marked, claim_mark};
pub(super) use self::{previous::Rotation, rules::GuardRules};
use super::{
    Engine, Inner, Request,
    handler::DetachOnDrop,
    lease::{Heart, Held, SeedOf},
    plan::Failed,
    take_over::Taken,
};
use crate::{
    fingerprint::{Fingerprint, PreviousIdentity, RecordId},
    policy::OnDoubt,
    record::{Record, RecordState},
    store::{CallInfo, Claim, Claimed, Lease, Store, StoreError},
    telemetry::Mode,
};

impl<S: Store> Engine<S> {
    /// The guard that a call needs before it claims its record, while a secret is replaced.
    pub(super) async fn previous_guard(
        &self,
        guard: &mut Option<Guard>,
        request: &Request<'_>,
        (mode, on_doubt): (Mode, OnDoubt),
        claim: &Claim,
    ) -> Result<Claimed<Option<Under>>, Failed> {
        let Some(previous) = request.identity.previous.as_deref() else {
            return Ok(Claimed::New(None));
        };
        if let Some(guard) = guard {
            return Ok(Claimed::New(Some(guard.under.clone())));
        }
        let rules = GuardRules::new(
            request.policy,
            &request.identity,
            on_doubt,
            mode == Mode::Transaction,
            self.inner.store.transaction_limit(),
        );
        let claimed = self.inner.guard(claim, *previous, rules).await?;
        Ok(claimed.map(|claimed| Some(guard.insert(claimed).under.clone())))
    }
}

impl<S: Store> Inner<S> {
    /// Claims the previous id of a call that will next be claimed under `claim`.
    ///
    /// If the caller is dropped meanwhile, the guard is given back.
    async fn guard(
        self: &Arc<Self>,
        claim: &Claim,
        previous: PreviousIdentity,
        rules: GuardRules,
    ) -> Result<Claimed<Guard>, Failed> {
        let (inner, claim) = (Arc::clone(self), claim.clone());
        DetachOnDrop::new(async move { inner.claim_guard(claim, previous, rules).await }).await
    }

    async fn claim_guard(
        &self,
        claim: Claim,
        previous: PreviousIdentity,
        rules: GuardRules,
    ) -> Result<Claimed<Guard>, Failed> {
        let guarded = Claim {
            id: previous.id,
            fingerprint: previous.fingerprint,
            lease: rules.terms.lease,
            ..claim.clone()
        };
        let claimed = self
            .claim_or_take_over(&guarded, |record, token| {
                self.find_guard(&claim, &guarded, rules, record, token)
            })
            .await?;
        let Taken { lease, asked, over } = match claimed {
            Claimed::New(taken) => taken,
            Claimed::InProgress => return Ok(Claimed::InProgress),
            Claimed::Conflict => return Ok(Claimed::Conflict),
            Claimed::Found(record) => return Ok(Claimed::Found(record)),
        };
        let Some((found, record, mark)) = over else {
            let guard = self.hold_guard(lease, &guarded, rules, asked, Found::Free);
            return Ok(Claimed::New(guard.await?));
        };
        let guard = self.hold_guard(lease, &guarded, rules, asked, found).await;
        let mut guard = guard.map_err(|error| Failed::after(Some(record.clone()), error))?;
        self.remove_mark(&mark).await;
        if found == Found::InDoubt {
            guard.in_doubt = Some(record);
        }
        Ok(Claimed::New(guard))
    }

    /// Decides whether a guard in doubt is taken over. Returns what it says, its record, and its mark.
    async fn find_guard(
        &self,
        claim: &Claim,
        guarded: &Claim,
        rules: GuardRules,
        record: Record,
        token: i64,
    ) -> Result<Claimed<(Found, Record, Claim)>, StoreError> {
        let mark = mark_of(guarded, token);
        let own = self.store.look_up(claim).await?;
        let found = match own.map(|own| own.state) {
            Some(RecordState::InProgress { .. }) => return Ok(Claimed::InProgress),
            // The record decides. The guard is taken over, to be completed with it.
            Some(RecordState::Completed { .. } | RecordState::Expired) => Found::InDoubt,
            None if self.store.look_up(&mark).await?.is_some() => Found::Marked,
            Some(RecordState::InDoubt { .. }) | None if rules.on_doubt == OnDoubt::Fail => {
                return Ok(Claimed::Found(record));
            }
            Some(RecordState::InDoubt { .. }) | None => Found::InDoubt,
        };
        Ok(Claimed::New((found, record, mark)))
    }

    pub(super) async fn hold_guard(
        &self,
        lease: Lease,
        guarded: &Claim,
        rules: GuardRules,
        asked: Instant,
        found: Found,
    ) -> Result<Guard, StoreError> {
        let origin = lease.origin;
        let mark = mark_of(guarded, lease.token);
        let held = self.keep_guard(lease, guarded, rules, asked);
        let under = Under {
            guard: Arc::<Held<Arc<S>>>::clone(&held),
            id: guarded.id,
            fingerprint: guarded.fingerprint,
            origin,
            in_doubt: found == Found::InDoubt,
        };
        let leases = |mark| GuardLeases {
            held: Arc::clone(&held),
            mark,
            rules,
        };
        if !rules.has_mark() {
            return Ok(Guard::new(leases(None), under, found));
        }
        let asked = Instant::now();
        match claim_mark(&*self.store, &mark).await {
            Ok(lease) => {
                let mark = lease.map(|lease| self.keep_guard(lease, &mark, rules, asked));
                Ok(Guard::new(leases(mark), under, found))
            }
            Err(error) => {
                if found == Found::Marked {
                    drop(tokio::spawn(abandon_marked(held, mark)));
                } else {
                    drop(Guard::new(leases(None), under, found));
                }
                Err(error)
            }
        }
    }

    fn keep_guard(
        &self,
        lease: Lease,
        claim: &Claim,
        rules: GuardRules,
        asked: Instant,
    ) -> Arc<Held<Arc<S>>> {
        // Nobody asks a guard for a downstream key.
        let seed_of = SeedOf {
            id: claim.id,
            fingerprint: claim.fingerprint,
            origin: lease.origin,
            secret: None,
        };
        let held = Arc::new(Held::new(
            (Arc::clone(&self.store), Arc::<Heart>::clone(&self.heart)),
            lease,
            rules.terms,
            asked,
            seed_of,
            claim,
            None,
        ));
        let kept: Arc<Held> = Arc::<Held<Arc<S>>>::clone(&held);
        self.heart.keep(&kept);
        held
    }

    /// Removes the mark of a guard that was taken over, which is no longer needed.
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
                "the mark of an interrupted attempt could not be removed"
            );
        }
    }
}

fn mark_of(guarded: &Claim, token: i64) -> Claim {
    let id = RecordId::of_guard_mark(guarded.id, token);
    Claim {
        id,
        // It shares no lock with the call itself.
        fingerprint: Fingerprint::of_no_call(id),
        call: CallInfo::internal("mark"),
        key_prefix: None,
        ..guarded.clone()
    }
}
