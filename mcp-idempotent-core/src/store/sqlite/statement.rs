//! The statements, with the tables' names filled in.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use super::watch::{FINISHING, WRITTEN};

/// SQLite's own clock in microseconds. `'now'` does not change within one step of a statement, and
/// a Julian day is precise to a millisecond. (`unixepoch('subsec')` needs SQLite 3.42.)
const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000";

/// In progress, under a lease.
pub(super) const IN_PROGRESS: i64 = 0;
/// Completed.
pub(super) const COMPLETED: i64 = 1;
/// In doubt.
pub(super) const IN_DOUBT: i64 = 2;
/// A tombstone.
pub(super) const EXPIRED: i64 = 3;
/// The key is free. Its origin and its audit trail are kept.
pub(super) const RELEASED: i64 = 4;

/// Every statement that runs more than once, as text that the driver prepares once per connection.
///
/// Most are single statements; `begin` and those that commit are batches. Parameters are, unless
/// noted, `?1` record id, `?2` fingerprint, `?3` tool, `?4` application, `?5` scope, `?6` key
/// prefix. Tables are qualified with `main`, so that a temporary table made by the handler cannot
/// replace them.
///
/// Every record has an `expires_at`. From then on it is absent, whatever its state.
///
/// The statements that every call runs have no RETURNING, no `IN` of more than two values, and no
/// joined sub-select, because SQLite makes a temporary table for each, which takes longer than
/// reading the row again.
#[derive(Debug)]
pub(super) struct Statements {
    /// `?1`, `?2` whether tombstones count → fingerprint, state (lapse and expiry decided),
    /// response, completed at or in doubt since, remaining lease, token, attempts.
    pub(super) look_up: SqlStr,
    /// Like `look_up`. If no record is found, the same round trip takes the write lock. It returns
    /// a row of one column if anything is left under the id; `make_room` then deals with it.
    ///
    /// The driver stops at the first row. So a replay begins no transaction, and there is none to
    /// end.
    pub(super) begin: SqlStr,
    /// Like `begin`, but takes the write lock first. What it finds is the last word on every
    /// attempt: no commit is on its way any more.
    pub(super) begin_and_look: SqlStr,
    /// Like `look_up`, in a transaction that it begins. If no record is found, it takes the write
    /// lock by deleting the expired record, if any.
    ///
    /// SQLite grants the lock only if nobody has committed since the look-up (otherwise it answers
    /// `SQLITE_BUSY_SNAPSHOT`), so there is no need to look again.
    pub(super) make_room: SqlStr,
    /// `?7` response, `?8` retention, `?9` tombstone → completed at; commits if the record was
    /// written. The record continues what is left of a released key.
    pub(super) record_and_commit: SqlStr,
    /// → now; commits.
    pub(super) commit: SqlStr,
    /// `?7` token, `?8` in-doubt retention; keeps an existing record, unless its key is free.
    pub(super) insert_in_doubt: SqlStr,
    /// → the next fencing token.
    pub(super) next_token: SqlStr,
    /// `?7` lease, `?8` in-doubt retention → token, origin, attempts; commits.
    pub(super) insert_in_progress: SqlStr,
    /// `?1` id, `?2` fingerprint, `?3` its token, `?4` the new one, `?5` lease, `?6` in-doubt
    /// retention → origin, attempts.
    pub(super) take_over: SqlStr,
    /// `?1` id, `?2` token, `?3` lease → now.
    pub(super) renew: SqlStr,
    /// `?1` id, `?2` token, `?3` response, `?4` retention, `?5` tombstone → completed at.
    pub(super) complete: SqlStr,
    /// Like `complete`; commits if the lease is current.
    pub(super) complete_and_commit: SqlStr,
    /// Like `complete`, for a lease and its guard (`?6` its id, `?7` its token, `?8` its
    /// retention): both or neither.
    pub(super) complete_both: SqlStr,
    /// Like `complete_both`; commits if both are current.
    pub(super) complete_both_and_commit: SqlStr,
    /// Like `record_and_commit`; first completes a guard (`?10` its id, `?11` its token, `?12` its
    /// retention), and commits only if that was current.
    pub(super) record_under_guard_and_commit: SqlStr,
    /// `?1` id, `?2` token, `?3` completed at → whether the record was completed with exactly
    /// these.
    pub(super) is_completed: SqlStr,
    /// `?1` id, `?2` token, `?3` response → completed at, if the record was completed with exactly
    /// these.
    pub(super) completed_as: SqlStr,
    /// `?1` id, `?2` token, `?3` how long to keep what is left → now.
    pub(super) release: SqlStr,
    /// `?1` id, `?2` token → now.
    pub(super) forget: SqlStr,
    /// `?1` id, `?2` token → now.
    pub(super) abandon: SqlStr,
    /// `?1` limit → a row for each.
    pub(super) bury: SqlStr,
    /// `?1` limit → a row for each.
    pub(super) purge: SqlStr,
    /// `?1` status, `?2` tool, `?3` application, `?4` scope, `?5` the beginning of the key, `?6`,
    /// `?7` the cursor's time and id, `?8` limit.
    pub(super) list: SqlStr,
    /// `?1` id → the columns of `list`, and the response.
    pub(super) show: SqlStr,
    /// `?1` id, `?2` its token, `?3` the new one, `?4` kind, `?5` who, `?6` why, `?7` response,
    /// `?8` retention, `?9` tombstone → now.
    pub(super) resolve_as_committed: SqlStr,
    /// Like `resolve_as_committed` up to `?6`; then `?7` how long to keep the trail, `?8` whether
    /// to keep the origin → now.
    pub(super) resolve_as_free: SqlStr,
    /// `?1` → whether there is a row.
    pub(super) exists: SqlStr,
    /// `?1` age, `?2` tool-name prefix of records that are not calls → a row if an older call is in
    /// progress or in doubt.
    pub(super) unsettled: SqlStr,
    /// → now.
    pub(super) now: SqlStr,
    /// → version.
    pub(super) schema_version: SqlStr,
    /// → whether this is a connection that the store has set up.
    pub(super) is_ours: SqlStr,
}

impl Statements {
    pub(super) fn new(prefix: &str) -> Self {
        let record = format!("main.{prefix}record");
        let store = format!("main.{prefix}store");
        // A lapsed lease is in doubt: its record can only be changed while the lease is valid.
        let held =
            format!("id = ?1 AND token = ?2 AND state = {IN_PROGRESS} AND lease_until > {NOW}");
        // Part of the first statement of a finishing batch. If the handler has swapped our
        // connection for another one, that connection has no such collation, and nothing in the
        // batch is done.
        let ours = format!("'a' < 'b' COLLATE {FINISHING}");
        // Only evaluated for a row that was written, because it names a column of that row.
        let written = format!("tool < '' COLLATE {WRITTEN}");
        // For the next attempt at a released key.
        let attempts = "attempts = CASE WHEN origin IS NULL THEN 1 ELSE attempts + 1 END";
        let called = "tool = excluded.tool, application = excluded.application, \
             scope = excluded.scope, key_prefix = excluded.key_prefix";
        let until = |end: &str| format!("expires_at = {end}, purge_at = {end}, sweep_at = {end}");
        let look_up = format!(
            "SELECT fingerprint, \
             CASE WHEN state = {IN_PROGRESS} AND lease_until <= {NOW} THEN {IN_DOUBT} \
                  WHEN state = {COMPLETED} AND expires_at <= {NOW} THEN {EXPIRED} \
                  ELSE state END, \
             response, coalesce(completed_at, lease_until), lease_until - {NOW}, token, attempts \
             FROM {record} WHERE id = ?1 AND state <> {RELEASED} \
             AND (expires_at > {NOW} OR (?2 AND purge_at > {NOW}))"
        );
        let set_completed = |response: &str, retention: &str, tombstone: &str| {
            format!(
                "UPDATE {record} SET state = {COMPLETED}, response = {response}, \
                 lease_until = NULL, completed_at = {NOW}, expires_at = {NOW} + {retention}, \
                 purge_at = {NOW} + {retention} + {tombstone}, sweep_at = {NOW} + {retention}"
            )
        };
        let complete = format!("{} WHERE {held}", set_completed("?3", "?4", "?5"));
        let both_held = format!(
            "(id = ?1 AND token = ?2 OR id = ?6 AND token = ?7) \
             AND state = {IN_PROGRESS} AND lease_until > {NOW}"
        );
        let complete_both = format!(
            "{} WHERE {both_held} AND (SELECT count(*) FROM {record} WHERE {both_held}) = 2",
            set_completed("?3", "CASE WHEN id = ?6 THEN ?8 ELSE ?4 END", "?5")
        );
        let record_if = |condition: &str| {
            format!(
                "INSERT INTO {record} (id, fingerprint, state, token, tool, application, \
                 scope, key_prefix, created_at, completed_at, expires_at, purge_at, sweep_at, response) \
                 SELECT ?1, ?2, {COMPLETED}, 0, ?3, ?4, ?5, ?6, \
                 c.now, c.now, c.now + ?8, c.now + ?8 + ?9, c.now + ?8, ?7 \
                 FROM (SELECT {NOW} AS now) AS c WHERE {condition} \
                 ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, \
                 state = excluded.state, token = excluded.token, {attempts}, \
                 {called}, \
                 completed_at = excluded.completed_at, expires_at = excluded.expires_at, \
                 purge_at = excluded.purge_at, sweep_at = excluded.sweep_at, \
                 response = excluded.response WHERE state = {RELEASED}; SELECT completed_at, {written} FROM {record} WHERE id = ?1 AND changes() = 1; COMMIT"
            )
        };
        let resolved = format!(
            "token = ?3, resolution = ?4, resolved_by = ?5, resolved_why = ?6, \
             resolved_at = {NOW}, lease_until = NULL"
        );
        let open = format!(
            "id = ?1 AND token = ?2 AND state IN ({IN_PROGRESS}, {IN_DOUBT}) AND expires_at > {NOW}"
        );
        let shown = format!(
            "id, CASE WHEN state = {IN_PROGRESS} AND lease_until > c.now THEN {IN_PROGRESS} \
             WHEN expires_at <= c.now THEN {EXPIRED} \
             WHEN state = {IN_PROGRESS} THEN {IN_DOUBT} ELSE state END AS status, \
             fingerprint, tool, application, scope, key_prefix, token, origin, attempts, \
             created_at, lease_until, completed_at, \
             expires_at, resolution, resolved_by, resolved_why, resolved_at"
        );
        // After a restored backup a plain counter would repeat tokens; the time prevents that.
        let draw_token = format!("UPDATE {store} SET last_token = max(last_token + 1, {NOW})");
        Self {
            begin: sql(format!(
                "{look_up}; BEGIN IMMEDIATE; SELECT 1 FROM {record} WHERE id = ?1"
            )),
            begin_and_look: sql(format!(
                "BEGIN IMMEDIATE; {look_up}; SELECT 1 FROM {record} WHERE id = ?1"
            )),
            make_room: sql(format!(
                "BEGIN; {look_up}; DELETE FROM {record} WHERE id = ?1 AND expires_at <= {NOW}"
            )),
            look_up: sql(look_up),
            commit: sql(format!(
                "SELECT {NOW} WHERE {ours} AND 'a' < 'b' COLLATE {WRITTEN}; COMMIT"
            )),
            record_and_commit: sql(record_if(&ours)),
            record_under_guard_and_commit: sql(format!(
                "{} WHERE id = ?10 AND token = ?11 AND state = {IN_PROGRESS} \
                 AND lease_until > {NOW} AND {ours}; {}",
                set_completed("?7", "?12", "?9"),
                record_if(&format!("{ours} AND changes() = 1"))
            )),
            insert_in_doubt: sql(format!(
                "INSERT INTO {record} (id, fingerprint, state, token, tool, application, \
                 scope, key_prefix, created_at, completed_at, in_doubt_retention, expires_at, purge_at, sweep_at) \
                 SELECT ?1, ?2, {IN_DOUBT}, ?7, ?3, ?4, ?5, ?6, \
                 c.now, c.now, ?8, c.now + ?8, c.now + ?8, c.now + ?8 \
                 FROM (SELECT {NOW} AS now) AS c WHERE true \
                 ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, \
                 state = excluded.state, token = excluded.token, {attempts}, \
                 {called}, \
                 in_doubt_retention = excluded.in_doubt_retention, \
                 completed_at = excluded.completed_at, expires_at = excluded.expires_at, \
                 purge_at = excluded.purge_at, sweep_at = excluded.sweep_at \
                 WHERE state = {RELEASED}"
            )),
            next_token: sql(format!("{draw_token} RETURNING last_token")),
            insert_in_progress: sql(format!(
                "{draw_token}; \
                 INSERT INTO {record} (id, fingerprint, state, token, origin, tool, application, \
                 scope, key_prefix, created_at, lease_until, in_doubt_retention, expires_at, purge_at, sweep_at) \
                 SELECT ?1, ?2, {IN_PROGRESS}, c.token, c.token, ?3, ?4, ?5, ?6, \
                 c.now, c.now + ?7, ?8, c.now + ?7 + ?8, c.now + ?7 + ?8, c.now + ?7 + ?8 \
                 FROM (SELECT {NOW} AS now, last_token AS token FROM {store}) AS c WHERE true \
                 ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, \
                 state = excluded.state, token = excluded.token, {attempts}, \
                 origin = coalesce(origin, excluded.origin), \
                 {called}, \
                 lease_until = excluded.lease_until, \
                 in_doubt_retention = excluded.in_doubt_retention, \
                 expires_at = excluded.expires_at, purge_at = excluded.purge_at, \
                 sweep_at = excluded.sweep_at WHERE state = {RELEASED}; \
                 SELECT token, origin, attempts FROM {record} WHERE id = ?1 AND changes() = 1; COMMIT"
            )),
            take_over: sql(format!(
                "UPDATE {record} SET state = {IN_PROGRESS}, token = ?4, \
                 origin = coalesce(origin, ?4), attempts = attempts + 1, completed_at = NULL, \
                 lease_until = {NOW} + ?5, in_doubt_retention = ?6, {} \
                 WHERE id = ?1 AND fingerprint = ?2 AND token = ?3 AND expires_at > {NOW} \
                 AND (state = {IN_DOUBT} OR (state = {IN_PROGRESS} AND lease_until <= {NOW})) \
                 RETURNING origin, attempts",
                until(&format!("{NOW} + ?5 + ?6"))
            )),
            renew: sql(format!(
                "UPDATE {record} SET lease_until = {NOW} + ?3, {} WHERE {held} RETURNING {NOW}",
                until(&format!("{NOW} + ?3 + in_doubt_retention"))
            )),
            complete_and_commit: sql(format!(
                "{complete} AND {ours} RETURNING completed_at, {written}; COMMIT"
            )),
            complete: sql(format!("{complete} RETURNING completed_at")),
            complete_both_and_commit: sql(format!(
                "{complete_both} AND {ours} RETURNING completed_at, {written}; COMMIT"
            )),
            complete_both: sql(format!("{complete_both} RETURNING completed_at")),
            is_completed: sql(format!(
                "SELECT EXISTS (SELECT 1 FROM {record} WHERE id = ?1 AND token = ?2 \
                 AND state = {COMPLETED} AND completed_at = ?3)"
            )),
            completed_as: sql(format!(
                "SELECT completed_at FROM {record} WHERE id = ?1 AND token = ?2 \
                 AND state = {COMPLETED} AND response IS ?3"
            )),
            release: sql(format!(
                "UPDATE {record} SET state = {RELEASED}, lease_until = NULL, {} \
                 WHERE {held} RETURNING {NOW}",
                until(&format!("{NOW} + ?3"))
            )),
            forget: sql(format!("DELETE FROM {record} WHERE {held} RETURNING {NOW}")),
            abandon: sql(format!(
                "UPDATE {record} SET state = {IN_DOUBT}, lease_until = NULL, \
                 completed_at = {NOW}, {} WHERE {held} RETURNING completed_at",
                until(&format!("{NOW} + in_doubt_retention"))
            )),
            bury: sql(format!(
                "UPDATE {record} SET state = {EXPIRED}, response = NULL, sweep_at = purge_at \
                 WHERE id IN (SELECT id FROM {record} WHERE sweep_at <= {NOW} \
                 AND state = {COMPLETED} AND purge_at > {NOW} LIMIT ?1) RETURNING 1"
            )),
            purge: sql(format!(
                "DELETE FROM {record} WHERE id IN (SELECT id FROM {record} \
                 WHERE sweep_at <= {NOW} AND purge_at <= {NOW} \
                 AND (state <> {IN_PROGRESS} OR lease_until <= {NOW}) LIMIT ?1) RETURNING 1"
            )),
            list: sql(format!(
                "SELECT * FROM (SELECT {shown} FROM {record}, (SELECT {NOW} AS now) AS c) \
                 WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR tool = ?2) \
                 AND (?3 IS NULL OR application = ?3) AND (?4 IS NULL OR scope = ?4) \
                 AND (?5 IS NULL OR substr(key_prefix, 1, length(?5)) = ?5) \
                 AND (?6 IS NULL OR (created_at, id) > (?6, ?7)) \
                 ORDER BY created_at, id LIMIT ?8"
            )),
            show: sql(format!(
                "SELECT {shown}, response FROM {record}, (SELECT {NOW} AS now) AS c WHERE id = ?1"
            )),
            resolve_as_committed: sql(format!(
                "UPDATE {record} SET state = {COMPLETED}, {resolved}, response = ?7, \
                 completed_at = {NOW}, expires_at = {NOW} + ?8, purge_at = {NOW} + ?8 + ?9, \
                 sweep_at = {NOW} + ?8 WHERE {open} RETURNING resolved_at"
            )),
            resolve_as_free: sql(format!(
                "UPDATE {record} SET state = {RELEASED}, {resolved}, completed_at = NULL, \
                 origin = CASE WHEN ?8 THEN origin END, {} WHERE {open} RETURNING resolved_at",
                until(&format!("{NOW} + ?7"))
            )),
            exists: sql(format!(
                "SELECT EXISTS (SELECT 1 FROM {record} WHERE id = ?1)"
            )),
            unsettled: sql(format!(
                "SELECT 1 FROM {record} WHERE state IN ({IN_PROGRESS}, {IN_DOUBT}) \
                 AND created_at < {NOW} - ?1 AND expires_at > {NOW} \
                 AND substr(tool, 1, length(?2)) <> ?2 LIMIT 1"
            )),
            now: sql(format!("SELECT {NOW}")),
            is_ours: sql(format!(
                "SELECT count(*) FROM pragma_collation_list WHERE name = '{FINISHING}' COLLATE NOCASE"
            )),
            schema_version: sql(format!("SELECT schema_version FROM {store}")),
        }
    }
}

fn sql(text: String) -> SqlStr {
    // The only outside text in it is the table prefix, which the builder has checked.
    AssertSqlSafe(Arc::<str>::from(text)).into_sql_str()
}
