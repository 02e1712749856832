-- A record in doubt with a large result, which is bound. It returns the row's place, by which settle.sql
-- turns it into a finished record.
INSERT INTO {records} AS r (id, fingerprint, state, token, attempts, tool, application, scope, key_prefix,
    response, in_doubt_retention, created_at, completed_at, expires_at)
SELECT $1, $2, 2, $3, 1, $5, $8, $9, $6, $4::pg_catalog.bytea, $7, pg_catalog.now(),
    clock.now, clock.now {+} ($7{microseconds}) FROM {clock}
RETURNING pg_catalog.format('%s', ctid)
