//! A quota: how many new calls each scope may begin, over all processes that share the store.
//!
//! A quota is divided into tickets, whose shares differ by at most one call. A ticket is a lease that
//! nobody completes. The process that claims it may begin its share of calls, until the lease ends;
//! then it can be claimed again. So the store is asked once for each share, and not for each call.

mod tickets;

use self::tickets::Owner;
pub(super) use self::tickets::{Allowance, Quota};
use super::{Engine, Request};
use crate::{
    error::Refusal,
    policy::OnExpired,
    record::{Record, RecordState},
    refusal,
    store::{Inspected, Store, StoreError},
};

/// Why a call may not begin.
pub(super) enum NotAllowed {
    Refused(Refusal),
    Store(StoreError),
}

impl<S: Store> Engine<S> {
    /// The right to begin this call, if there is a quota. A call that has begun before needs none.
    pub(super) async fn allow(
        &self,
        request: &Request<'_>,
    ) -> Result<Option<Allowance>, NotAllowed> {
        let (Some(quota), Some(scope)) = (&self.inner.quota, &request.call.scope) else {
            return Ok(None);
        };
        let owner = Owner {
            application: &self.inner.application,
            scope,
            secret: self.inner.secret.as_ref(),
        };
        let allowed = quota.allow(&*self.inner.store, &owner).await;
        if let Some(allowance) = allowed.map_err(NotAllowed::Store)? {
            return Ok(Some(allowance));
        }
        let expired_counts = request.policy.on_expired == OnExpired::Refuse;
        match self.look(request.call.clone(), &request.identity).await {
            Ok(Inspected::NotSeen) => Err(NotAllowed::Refused(refusal::too_many_new_calls())),
            Ok(Inspected::Found(Record {
                state: RecordState::Expired,
                ..
            })) if !expired_counts => Err(NotAllowed::Refused(refusal::too_many_new_calls())),
            Ok(_) => Ok(None),
            Err(refusal) => Err(NotAllowed::Refused(refusal)),
        }
    }
}
