//! The statements, with the tables' names filled in.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use super::writer::FINISHING;

/// SQLite's own clock in microseconds. `'now'` stands still within one step of a statement, and
/// a Julian day has the precision of a millisecond. (`unixepoch('subsec')` needs SQLite 3.42.)
const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000";

/// In progress, under a lease.
pub(super) const IN_PROGRESS: i64 = 0;
/// In doubt.
pub(super) const IN_DOUBT: i64 = 1;
/// Completed.
pub(super) const COMPLETED: i64 = 2;
/// A tombstone.
pub(super) const EXPIRED: i64 = 3;

/// Every statement that runs more than once, as text that the driver prepares once a connection.
///
/// Most are single statements; `begin` and the two that commit are batches. Parameters are, unless noted, `?1` record id,
/// `?2` fingerprint, `?3` tool, `?4` key prefix. Tables are qualified with `main`, so that a
/// temporary table of the handler's cannot stand in for them.
#[derive(Debug)]
pub(super) struct Statements {
    /// `?1`, `?2` whether tombstones count → fingerprint, state (lapse and expiry decided),
    /// response, completed at, remaining lease.
    pub(super) look_up: SqlStr,
    /// As `look_up`, in a transaction that is begun with it. Where no record is found, the same
    /// round trip goes on to take the write lock: by removing what has expired, if anything.
    ///
    /// The driver stops at the first row, so a replay takes no write lock. And SQLite gives the
    /// lock only if nobody has committed since the look-up (else it is `SQLITE_BUSY_SNAPSHOT`),
    /// so there is no need to look again.
    pub(super) begin: SqlStr,
    /// `?5` response, `?6` retention, `?7` tombstone → completed at, then a row without meaning;
    /// and commits.
    pub(super) record_and_commit: SqlStr,
    /// → now, then a row without meaning; and commits.
    pub(super) commit: SqlStr,
    /// Keeps what is there.
    pub(super) insert_in_doubt: SqlStr,
    /// → the next fencing token.
    pub(super) next_token: SqlStr,
    /// `?5` lease, `?6` token.
    pub(super) insert_in_progress: SqlStr,
    /// `?1` id, `?2` token, `?3` response, `?4` retention, `?5` tombstone → completed at.
    pub(super) complete: SqlStr,
    /// `?1` id, `?2` token → now.
    pub(super) release: SqlStr,
    /// `?1` id, `?2` token → now.
    pub(super) abandon: SqlStr,
    /// `?1` how many → a row for each.
    pub(super) bury: SqlStr,
    /// `?1` how many → a row for each.
    pub(super) purge: SqlStr,
    /// → now.
    pub(super) now: SqlStr,
    /// → version.
    pub(super) schema_version: SqlStr,
}

impl Statements {
    pub(super) fn new(prefix: &str) -> Self {
        let record = format!("main.{prefix}record");
        let store = format!("main.{prefix}store");
        // A lapsed lease is in doubt: only a lease that still runs may change its record.
        let held =
            format!("id = ?1 AND token = ?2 AND state = {IN_PROGRESS} AND lease_until > {NOW}");
        let finish = format!("SELECT 'a' < 'b' COLLATE {FINISHING}; COMMIT");
        let look_up = format!(
            "SELECT fingerprint, \
             CASE WHEN state = {IN_PROGRESS} AND lease_until <= c.now THEN {IN_DOUBT} \
                  WHEN state = {COMPLETED} AND expires_at <= c.now THEN {EXPIRED} \
                  ELSE state END, \
             response, completed_at, lease_until - c.now \
             FROM {record}, (SELECT {NOW} AS now) AS c WHERE id = ?1 \
             AND (expires_at IS NULL OR expires_at > c.now OR (?2 AND purge_at > c.now))"
        );
        Self {
            begin: sql(format!(
                "BEGIN; {look_up}; \
                 DELETE FROM {record} WHERE id = ?1 AND state IN ({COMPLETED}, {EXPIRED}) \
                 AND expires_at <= {NOW}"
            )),
            look_up: sql(look_up),
            commit: sql(format!("SELECT {NOW}; {finish}")),
            record_and_commit: sql(format!(
                "INSERT INTO {record} (id, fingerprint, state, token, tool, key_prefix, \
                 created_at, completed_at, expires_at, purge_at, sweep_at, response) \
                 SELECT ?1, ?2, {COMPLETED}, 0, ?3, ?4, \
                 c.now, c.now, c.now + ?6, c.now + ?6 + ?7, c.now + ?6, ?5 \
                 FROM (SELECT {NOW} AS now) AS c WHERE true RETURNING completed_at; {finish}"
            )),
            insert_in_doubt: sql(format!(
                "INSERT INTO {record} (id, fingerprint, state, token, tool, key_prefix, created_at) \
                 SELECT ?1, ?2, {IN_DOUBT}, 0, ?3, ?4, {NOW} WHERE true \
                 ON CONFLICT (id) DO NOTHING"
            )),
            next_token: sql(format!(
                "UPDATE {store} SET last_token = last_token + 1 RETURNING last_token"
            )),
            insert_in_progress: sql(format!(
                "INSERT INTO {record} (id, fingerprint, state, token, tool, key_prefix, \
                 created_at, lease_until) \
                 SELECT ?1, ?2, {IN_PROGRESS}, ?6, ?3, ?4, c.now, c.now + ?5 \
                 FROM (SELECT {NOW} AS now) AS c"
            )),
            complete: sql(format!(
                "UPDATE {record} SET state = {COMPLETED}, response = ?3, lease_until = NULL, \
                 completed_at = {NOW}, expires_at = {NOW} + ?4, purge_at = {NOW} + ?4 + ?5, \
                 sweep_at = {NOW} + ?4 WHERE {held} RETURNING completed_at"
            )),
            release: sql(format!("DELETE FROM {record} WHERE {held} RETURNING {NOW}")),
            abandon: sql(format!(
                "UPDATE {record} SET state = {IN_DOUBT}, lease_until = NULL WHERE {held} \
                 RETURNING {NOW}"
            )),
            bury: sql(format!(
                "UPDATE {record} SET state = {EXPIRED}, response = NULL, sweep_at = purge_at \
                 WHERE id IN (SELECT id FROM {record} WHERE sweep_at <= {NOW} \
                 AND state = {COMPLETED} AND purge_at > {NOW} LIMIT ?1) RETURNING 1"
            )),
            purge: sql(format!(
                "DELETE FROM {record} WHERE id IN (SELECT id FROM {record} \
                 WHERE sweep_at <= {NOW} AND state IN ({COMPLETED}, {EXPIRED}) \
                 AND purge_at <= {NOW} LIMIT ?1) RETURNING 1"
            )),
            now: sql(format!("SELECT {NOW}")),
            schema_version: sql(format!("SELECT schema_version FROM {store}")),
        }
    }
}

fn sql(text: String) -> SqlStr {
    // Nothing from outside is in it but the tables' prefix, which the builder has checked.
    AssertSqlSafe(Arc::<str>::from(text)).into_sql_str()
}
