-- $1 pg_catalog.bytea  record id
-- $2 pg_catalog.bytea  fingerprint
-- $3 bigint            mark of the transaction
-- $4 pg_catalog.text   tool
-- $5 pg_catalog.text   key prefix
-- $6 bigint            retention in microseconds
-- $7 pg_catalog.text   application
-- $8 pg_catalog.text   scope
-- A record in doubt: all that is known is that its call ended. If a large result was written after the
-- handler had committed, the result is removed.
INSERT INTO {records} AS r (id, fingerprint, state, token, attempts, tool, application, scope, key_prefix,
    response, in_doubt_retention, created_at, completed_at, expires_at)
SELECT $1, $2, 2, $3, 1, $4, $7, $8, $5, NULL::pg_catalog.bytea, $6, clock.now,
    clock.now, clock.now {+} ($6{microseconds}) FROM {clock}
ON CONFLICT (id) DO UPDATE SET response = NULL WHERE r.token {=} excluded.token
