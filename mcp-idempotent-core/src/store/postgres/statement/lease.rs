//! The statements of lease mode.

use super::super::schema::SchemaName;
use super::{CLOCK, Name, Statement, micros};

/// Whether a record is past its end, as an expression over its columns. `$2`: whether a tombstone
/// counts as a record; `released`: whether what is left of a free key is past its end.
pub(super) fn is_past(now: &str, released: &str) -> String {
    format!(
        "coalesce(CASE WHEN state = 0 THEN {} <= {now} \
         WHEN state = 4 THEN {released} \
         WHEN $2 AND state IN (1, 3) THEN purge_at <= {now} \
         WHEN state = 3 THEN true \
         ELSE expires_at <= {now} END, false)",
        in_doubt_until()
    )
}

/// Until when a record in progress is kept, if its lease is not renewed.
pub(in super::super) fn in_doubt_until() -> &'static str {
    "(lease_until + in_doubt_retention * interval '1 microsecond')"
}

/// Whether a record is in doubt, and within its retention.
pub(in super::super) fn is_in_doubt(now: &str) -> String {
    format!(
        "state IN (0, 2) AND CASE state WHEN 0 THEN lease_until <= {now} \
         AND coalesce({} > {now}, true) ELSE coalesce(expires_at > {now}, true) END",
        in_doubt_until()
    )
}

#[expect(clippy::too_many_lines, reason = "one statement after the other")]
pub(super) fn statements(schema: &SchemaName) -> Vec<Statement> {
    let records = format!("{}.records", schema.quoted());
    let drawn = format!(
        "(SELECT pg_catalog.nextval('{}.tokens') AS token OFFSET 0) AS drawn",
        schema.quoted()
    );
    let statement = |name, suffix, parameters, text| Statement {
        name,
        suffix,
        parameters,
        text,
    };
    let lease_end = |id: &str, token: &str| {
        format!(
            "id = {id} AND token = {token} AND state = 0 \
             AND lease_until > pg_catalog.clock_timestamp()"
        )
    };
    let guard = lease_end("$1", "$2");
    let completed = micros("completed_at");
    let now = micros("clock.now");
    let complete = |response: &str, retention: &str, tombstone: &str| {
        format!(
            "UPDATE {records} SET state = 1, response = {response}, completed_at = clock.now, \
             expires_at = clock.now + {retention} * interval '1 microsecond', \
             purge_at = clock.now + ({retention} + {tombstone}) * interval '1 microsecond'"
        )
    };
    vec![
        // A claim of lease mode goes on from what is left of a free key, so it does not remove it.
        statement(
            Name::ExpireUnkept,
            "expire_unkept",
            &["bytea", "boolean"],
            format!(
                "DELETE FROM {records} WHERE id = $1 AND {}",
                is_past(
                    "pg_catalog.clock_timestamp()",
                    "expires_at <= pg_catalog.clock_timestamp()"
                )
            ),
        ),
        statement(
            Name::Held,
            "held",
            &["bytea"],
            format!(
                "SELECT pg_catalog.sqrt(-1::float8 - state) FROM {records} \
                 WHERE id = $1 AND state <> 4"
            ),
        ),
        // Only what is left of a free key may be replaced. A second racer gets no row, which its
        // claim takes for a record that exists.
        statement(
            Name::Claim,
            "claim",
            &["bytea", "bytea", "text", "text", "bigint", "bigint"],
            format!(
                "INSERT INTO {records} AS r (id, fingerprint, state, token, origin, attempts, \
                 tool, key_prefix, created_at, lease_until, in_doubt_retention, expires_at) \
                 SELECT $1, $2, 0, drawn.token, drawn.token, 1, $3, $4, clock.now, \
                 clock.now + $5 * interval '1 microsecond', $6, \
                 clock.now + ($5 + $6) * interval '1 microsecond' FROM {CLOCK}, {drawn} \
                 ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, state = 0, \
                 token = excluded.token, origin = coalesce(r.origin, excluded.token), \
                 attempts = CASE WHEN r.origin IS NULL THEN 1 ELSE r.attempts + 1 END, \
                 tool = excluded.tool, key_prefix = excluded.key_prefix, \
                 lease_until = excluded.lease_until, \
                 in_doubt_retention = excluded.in_doubt_retention, \
                 expires_at = excluded.expires_at \
                 WHERE r.state = 4 RETURNING r.token, r.origin, r.attempts"
            ),
        ),
        statement(
            Name::TakeOver,
            "take_over",
            &["bytea", "bigint", "bytea", "bigint", "bigint"],
            format!(
                "UPDATE {records} AS r SET state = 0, token = drawn.token, \
                 origin = coalesce(r.origin, drawn.token), attempts = r.attempts + 1, \
                 lease_until = clock.now + $4 * interval '1 microsecond', \
                 in_doubt_retention = $5, completed_at = NULL, \
                 expires_at = clock.now + ($4 + $5) * interval '1 microsecond' \
                 FROM {CLOCK}, {drawn} \
                 WHERE r.id = $1 AND r.token = $2 AND r.fingerprint = $3 AND {} \
                 RETURNING r.token, r.origin, r.attempts",
                is_in_doubt("pg_catalog.clock_timestamp()")
            ),
        ),
        // Nothing but `lease_until`: see the comment at that column in the migration.
        statement(
            Name::Renew,
            "renew",
            &["bytea", "bigint", "bigint"],
            format!(
                "UPDATE {records} SET lease_until = clock.now + $3 * interval '1 microsecond' \
                 FROM {CLOCK} WHERE {guard} RETURNING {now}"
            ),
        ),
        statement(
            Name::Complete,
            "complete",
            &["bytea", "bigint", "bytea", "bigint", "bigint"],
            format!(
                "{}, lease_until = NULL FROM {CLOCK} WHERE {guard} RETURNING {completed}",
                complete("$3", "$4", "$5")
            ),
        ),
        // As a part of a handler's transaction, where only an error keeps the COMMIT that follows
        // from taking place: the logarithm of zero rows. The end of the lease is
        // looked at again in what was written, because the first look may have been before a wait
        // for somebody who held the row.
        statement(
            Name::CompleteHere,
            "complete_here",
            &["bytea", "bigint", "bytea", "bigint", "bigint"],
            format!(
                "WITH done AS ({} FROM {CLOCK} WHERE {} \
                 RETURNING completed_at, lease_until > pg_catalog.clock_timestamp() AS current) \
                 SELECT pg_catalog.ln((count(*) FILTER (WHERE current))::float8), {} FROM done",
                complete("$3", "$4", "$5"),
                lease_end("$1", "$2"),
                micros("max(completed_at)"),
            ),
        ),
        statement(
            Name::Release,
            "release",
            &["bytea", "bigint"],
            format!(
                "DELETE FROM {records} WHERE {guard} RETURNING {}",
                micros("pg_catalog.clock_timestamp()")
            ),
        ),
        statement(
            Name::Keep,
            "keep",
            &["bytea", "bigint", "bigint"],
            format!(
                "UPDATE {records} SET state = 4, lease_until = NULL, \
                 expires_at = clock.now + $3 * interval '1 microsecond' \
                 FROM {CLOCK} WHERE {guard} RETURNING {now}"
            ),
        ),
        statement(
            Name::Abandon,
            "abandon",
            &["bytea", "bigint"],
            format!(
                "UPDATE {records} SET state = 2, lease_until = NULL, completed_at = clock.now, \
                 expires_at = clock.now + in_doubt_retention * interval '1 microsecond' \
                 FROM {CLOCK} WHERE {guard} RETURNING {completed}"
            ),
        ),
    ]
}
