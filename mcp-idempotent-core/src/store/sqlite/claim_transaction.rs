//! Claiming in transaction mode: the write lock is taken for the handler, and held until it ends.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use sqlx::SqliteConnection;

use super::{error::store_error, lock::Opened, queue::Checkout, store::SqliteStore};
use crate::store::{CallInfo, Claim, Claimed, StoreError};

pub(super) async fn begin(
    store: &SqliteStore,
    call: &CallInfo,
    claim: Option<&Claim>,
) -> Result<Claimed<SqliteTransaction>, StoreError> {
    let mut checkout = match store.open_for(claim, false).await? {
        Opened::Found(record) => return Ok(Claimed::Found(record)),
        Opened::New(checkout) => checkout,
    };
    checkout.is_handled();
    checkout.writer.watch.hold();
    if let Some(on_begin) = &store.shared.on_begin
        && let Err(error) = on_begin(&mut checkout.writer.connection, call).await
    {
        let error = store_error("the set-up hook", error);
        checkout.roll_back_and_give_back().await;
        return Err(error);
    }
    Ok(Claimed::New(SqliteTransaction { checkout }))
}

/// An open transaction that holds SQLite's write lock. Dropping it rolls back.
pub struct SqliteTransaction {
    pub(super) checkout: Checkout,
}

impl Deref for SqliteTransaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.checkout.writer.connection
    }
}

impl DerefMut for SqliteTransaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.checkout.writer.connection
    }
}

impl fmt::Debug for SqliteTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTransaction").finish_non_exhaustive()
    }
}
