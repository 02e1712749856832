-- $1 pg_catalog.bytea  record id
-- $2 pg_catalog.bytea  fingerprint
-- $3 bigint            mark of the transaction
-- $4 pg_catalog.text   labels
-- $5 bigint            retention in microseconds
-- A record in doubt: all that is known is that its call ended. If a large result was written after the
-- handler had committed, the result is removed.
INSERT INTO {records} AS r (id, fingerprint, state, token, labels,
    response, in_doubt_retention, created_at, completed_at, expires_at)
SELECT $1, $2, 2, $3, $4, NULL::pg_catalog.bytea, $5, clock.now,
    clock.now, clock.now {+} ($5{microseconds}) FROM {clock}
ON CONFLICT (id) DO UPDATE SET response = NULL WHERE r.token {=} excluded.token
