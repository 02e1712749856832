-- A record in doubt with a large result, which is bound. It returns the row's place, by which settle.sql
-- turns it into a finished record.
INSERT INTO {records} AS r (id, fingerprint, state, token, labels,
    response, in_doubt_retention, created_at, completed_at, expires_at)
SELECT $1, $2, 2, $3, $5, $4::pg_catalog.bytea, $6, pg_catalog.now(),
    clock.now, clock.now {+} ($6{microseconds}) FROM {clock}
RETURNING pg_catalog.format('%s', ctid)
