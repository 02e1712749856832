-- $1 pg_catalog.bytea  record id
-- $2 pg_catalog.bytea  fingerprint
-- $3 pg_catalog.bytea  result
-- $4 bigint            mark of the transaction
-- $5 pg_catalog.text   tool
-- $6 pg_catalog.text   key prefix
-- $7 bigint            retention in microseconds
-- $8 bigint            tombstone in microseconds
-- $9 pg_catalog.text   application
-- $10 pg_catalog.text  scope
-- The finished record. Its time is when this message reached the server. `now()` would be the start of
-- the transaction, and a slow handler's record could have expired by its commit.
INSERT INTO {records} (id, fingerprint, state, token, attempts, tool, application, scope, key_prefix,
    response, created_at, completed_at, expires_at, purge_at)
VALUES ($1, $2, 1, $4, 1, $5, $9, $10, $6, $3,
    pg_catalog.now(), {arrival}, {arrival} {+} ($7{microseconds}),
    {arrival} {+} (($7 {+} $8){microseconds}))
