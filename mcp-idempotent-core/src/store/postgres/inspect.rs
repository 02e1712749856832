//! What is known of a key, without taking its lock.
//!
//! Taking the lock, if only to give it back, could make a concurrent call believe that its key is
//! in use. So the server's table of locks is asked instead, and the records in a later statement:
//! a lock that was given up in between has left its record visible.

use sqlx::Row as _;

use super::{PostgresStore, connection::run};
use crate::store::{Claim, Inspected, StoreError};

impl PostgresStore {
    pub(super) async fn inspect_key(&self, claim: &Claim) -> Result<Inspected, StoreError> {
        let held = self.is_held(claim).await?;
        Ok(match self.look_up_record(claim).await? {
            Some(record) => Inspected::Found(record),
            None if held => Inspected::InProgress,
            None => Inspected::NotSeen,
        })
    }

    async fn is_held(&self, claim: &Claim) -> Result<bool, StoreError> {
        let key = self.inner.locks.of_key(claim);
        // A lock on a bigint is listed as its upper and its lower half.
        let sql = format!(
            "SELECT pg_catalog.count(*) > 0 FROM pg_catalog.pg_locks l \
             JOIN pg_catalog.pg_database d ON d.oid = l.database \
             WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted \
             AND d.datname = pg_catalog.current_database() \
             AND (l.classid::bigint << 32 | l.objid::bigint) = {key}"
        );
        let mut connection = self.connection().await?;
        let row = run(&mut connection, sql)
            .await
            .into_last_row()
            .map_err(|error| self.error("the key's lock could not be looked up", error))?;
        let held = row
            .map(|row| row.try_get::<bool, _>(0))
            .transpose()
            .map_err(|error| self.error("the key's lock could not be looked up", error))?;
        connection.release();
        Ok(held.unwrap_or(false))
    }
}
