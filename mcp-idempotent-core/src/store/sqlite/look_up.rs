//! Looking up a record.

use super::{lock::Opened, row::Found, store::SqliteStore};
use crate::{
    record::Record,
    store::{Claim, Inspected, StoreError, StoreErrorKind},
};

pub(super) async fn look_up(
    store: &SqliteStore,
    claim: &Claim,
) -> Result<Option<Record>, StoreError> {
    match store.read(claim, store.deadline()).await? {
        Found::Nothing | Found::Remains => Ok(None),
        Found::Record(record) => Ok(Some(record)),
        Found::Lapsed(_) => look_locked(store, claim).await,
    }
}

/// Looks under the write lock.
async fn look_locked(store: &SqliteStore, claim: &Claim) -> Result<Option<Record>, StoreError> {
    match store.open_for(Some(claim), false).await? {
        Opened::Found(record) => Ok(Some(record)),
        Opened::New(checkout) => {
            checkout.roll_back_and_give_back().await;
            Ok(None)
        }
    }
}

/// The key is free if the write lock is free. Another process's running transaction does not say
/// which key it belongs to. So while it holds the lock, every unknown key counts as in progress.
pub(super) async fn inspect(store: &SqliteStore, claim: &Claim) -> Result<Inspected, StoreError> {
    match look_locked(store, claim).await {
        Ok(Some(record)) => Ok(Inspected::Found(record)),
        Ok(None) => Ok(Inspected::NotSeen),
        Err(error) if error.kind() == StoreErrorKind::Busy => Ok(Inspected::InProgress),
        Err(error) => Err(error),
    }
}
