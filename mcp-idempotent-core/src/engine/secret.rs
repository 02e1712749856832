//! One application has one secret: the store remembers which.

use std::time::Duration;

use super::Inner;
use crate::{
    fingerprint::Secret,
    store::{CallInfo, Claim, Claimed, Completion, Store, StoreError},
};

/// As good as for ever, and short enough for every store's arithmetic.
const KEPT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Why the secret could not be relied on.
pub(super) enum Unchecked {
    AnotherSecret,
    Store(StoreError),
}

impl<S: Store> Inner<S> {
    /// Asked until the store has once said yes: what it said no to may be mended under a running
    /// server.
    pub(super) async fn check_secret(&self, call: &CallInfo) -> Result<(), Unchecked> {
        self.secret_fits
            .get_or_try_init(|| async {
                match self.secret_fits(call).await {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(Unchecked::AnotherSecret),
                    Err(error) => Err(Unchecked::Store(error)),
                }
            })
            .await
            .copied()
    }

    /// Who comes first with a secret leaves its check value; everybody else must have the same.
    async fn secret_fits(&self, call: &CallInfo) -> Result<bool, StoreError> {
        let (id, expected) = Secret::check_record(&self.application, self.secret.as_ref());
        let claim = Claim::new(id, expected, call.clone());
        if let Some(record) = self.store.look_up(&claim).await? {
            return Ok(record.fingerprint == expected);
        }
        if self.secret.is_none() {
            return Ok(true);
        }
        match self.store.claim(&claim).await? {
            Claimed::New(lease) => {
                self.store
                    .complete(&lease, Completion::new(Some(bytes::Bytes::new()), KEPT))
                    .await?;
                Ok(true)
            }
            Claimed::Found(record) => Ok(record.fingerprint == expected),
            // The very same call: somebody with the same secret is at it.
            Claimed::InProgress => Ok(true),
            Claimed::Conflict => Ok(false),
        }
    }
}
