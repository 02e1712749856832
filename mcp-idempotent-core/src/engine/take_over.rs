//! Claims a lease, or takes over that of a call in doubt.

use std::future::Future;

use tokio::time::Instant;

use super::{Inner, plan::Failed};
use crate::{
    record::{Record, RecordState},
    store::{Claim, Claimed, Lease, Store, StoreError, StoreErrorKind},
};

/// How often to try to take over a call in doubt while others do the same.
const TAKE_OVERS: u32 = 8;

/// A lease that was claimed or taken over.
pub(super) struct Taken<T> {
    pub(super) lease: Lease,
    /// When the store was asked for it.
    pub(super) asked: Instant,
    /// If it was taken over: what was decided about the call in doubt.
    pub(super) over: Option<T>,
}

impl<S: Store> Inner<S> {
    /// If the claim finds the same call in doubt, `decide` is given its record and the token of its
    /// last attempt. `Claimed::New` takes it over; anything else is the answer.
    pub(super) async fn claim_or_take_over<T, F>(
        &self,
        claim: &Claim,
        decide: impl Fn(Record, i64) -> F,
    ) -> Result<Claimed<Taken<T>>, Failed>
    where
        F: Future<Output = Result<Claimed<T>, StoreError>>,
    {
        let mut tries = 0;
        let mut in_doubt = None;
        loop {
            let asked = Instant::now();
            let claimed = self.store.claim(claim).await;
            let claimed = claimed.map_err(|error| Failed::after(in_doubt.take(), error))?;
            let record = match claimed {
                Claimed::Found(record) => record,
                other => {
                    return Ok(other.map(|lease| Taken {
                        lease,
                        asked,
                        over: None,
                    }));
                }
            };
            let RecordState::InDoubt { token, .. } = record.state else {
                return Ok(Claimed::Found(record));
            };
            if record.fingerprint != claim.fingerprint {
                return Ok(Claimed::Found(record));
            }
            let failed = |error| Failed::after(Some(record.clone()), error);
            let over = match decide(record.clone(), token).await.map_err(failed)?.held() {
                Ok(over) => over,
                Err(found) => return Ok(found),
            };
            let asked = Instant::now();
            tries += 1;
            match self.store.take_over(claim, token).await {
                Ok(Some(lease)) => {
                    return Ok(Claimed::New(Taken {
                        lease,
                        asked,
                        over: Some(over),
                    }));
                }
                // Another one was faster, and decides.
                Ok(None) if tries >= TAKE_OVERS => return Ok(Claimed::InProgress),
                Ok(None) => {}
                Err(error) if error.kind() == StoreErrorKind::Conflict && tries < TAKE_OVERS => {}
                Err(error) => return Err(failed(error)),
            }
            in_doubt = Some(record);
        }
    }
}
