-- $1 bytea   record id
-- $2 bytea   fingerprint
-- $3 bytea   result
-- $4 bigint  mark of the transaction
-- $5 text    tool
-- $6 text    key prefix
-- $7 bigint  retention in microseconds
-- $8 bigint  tombstone in microseconds
-- The finished record. Its time is when this message reached the server. `now()` would be the start of
-- the transaction, and a slow handler's record could have expired by its commit.
INSERT INTO {records} (id, fingerprint, state, token, attempts, tool, key_prefix,
    response, created_at, completed_at, expires_at, purge_at)
VALUES ($1, $2, 1, $4, 1, $5, $6, $3,
    pg_catalog.now(), {arrival}, {arrival} + $7 * interval '1 microsecond',
    {arrival} + ($7 + $8) * interval '1 microsecond')
RETURNING (extract(epoch FROM completed_at) * 1000000)::bigint
