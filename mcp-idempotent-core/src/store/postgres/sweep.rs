//! Removing expired records in small batches that wait for nobody.

use super::{PostgresStore, connection::run, statement::in_doubt_until};
use crate::store::StoreError;

/// The most records that one transaction of a sweep touches.
const BATCH: u32 = 1000;

/// Whether a step of the sweep removes records or reduces them to tombstones.
enum Counts {
    Yes,
    No,
}

impl PostgresStore {
    pub(super) async fn sweep_expired(&self, limit: u32) -> Result<u64, StoreError> {
        let records = format!("{}.records", self.inner.schema.quoted());
        // A clock in a sub-select is read once, and an index can be searched by it.
        let now = "(SELECT pg_catalog.clock_timestamp())";
        let in_doubt_until = in_doubt_until();
        let steps = [
            (
                format!("DELETE FROM {records}"),
                format!(
                    "expires_at <= {now} AND CASE state WHEN 0 THEN {in_doubt_until} <= {now} \
                     WHEN 1 THEN purge_at <= {now} ELSE true END"
                ),
                Counts::Yes,
            ),
            (
                format!("UPDATE {records} SET state = 3, response = NULL, expires_at = purge_at"),
                format!("state = 1 AND expires_at <= {now}"),
                Counts::Yes,
            ),
            // Renewals leave `expires_at` alone, so that they touch no index.
            (
                format!("UPDATE {records} SET expires_at = {in_doubt_until}"),
                format!("state = 0 AND expires_at <= {now} AND {in_doubt_until} > {now}"),
                Counts::No,
            ),
        ];
        let mut swept = 0;
        for (change, ended, counts) in &steps {
            loop {
                let left = u64::from(limit).saturating_sub(swept);
                let size = u32::try_from(left).map_or(BATCH, |left| left.min(BATCH));
                if size == 0 {
                    return Ok(swept);
                }
                let changed = self
                    .sweep_batch(&format!(
                        "{change} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {records} \
                         WHERE {ended} LIMIT {size} FOR UPDATE SKIP LOCKED))"
                    ))
                    .await?;
                if matches!(counts, Counts::Yes) {
                    swept += changed;
                }
                if changed < u64::from(size) {
                    break;
                }
            }
        }
        Ok(swept)
    }

    async fn sweep_batch(&self, statement: &str) -> Result<u64, StoreError> {
        let mut connection = self.connection().await?;
        let batch = format!("BEGIN ISOLATION LEVEL READ COMMITTED;{statement};COMMIT;");
        let answer = run(&mut connection, batch).await;
        if let Some(error) = answer.error {
            return Err(self.error("the sweep failed", error));
        }
        connection.release();
        Ok(answer.affected.get(1).copied().unwrap_or(0))
    }
}
