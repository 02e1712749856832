//! Looking up a record.

use super::{lock::Opened, store::SqliteStore};
use crate::{
    record::Record,
    store::{Claim, Inspected, StoreError, StoreErrorKind},
};

pub(super) async fn look_up(
    store: &SqliteStore,
    claim: &Claim,
) -> Result<Option<Record>, StoreError> {
    store.read(claim, store.deadline()).await
}

/// The key is free if the write lock is free. Another process's running transaction does not say
/// which key it belongs to. So while it holds the lock, every unknown key counts as in progress.
pub(super) async fn inspect(store: &SqliteStore, claim: &Claim) -> Result<Inspected, StoreError> {
    match store.open_for(Some(claim), false).await {
        Ok(Opened::Found(record)) => Ok(Inspected::Found(record)),
        Ok(Opened::New(checkout)) => {
            checkout.roll_back_and_give_back().await;
            Ok(Inspected::NotSeen)
        }
        Err(error) if error.kind() == StoreErrorKind::Busy => Ok(Inspected::InProgress),
        Err(error) => Err(error),
    }
}
