-- $1 bytea   record id
-- $2 bigint  token
-- $3 bytea   result
-- $4 bigint  retention in microseconds
-- $5 bigint  tombstone in microseconds
-- Like complete.sql, but inside a handler's transaction, where only an error prevents the COMMIT that
-- follows. The logarithm of zero rows is that error. The lease's end is checked again after the write,
-- because the first check may have come before a wait for a lock on the row.
WITH done AS (UPDATE {records} SET state = 1, response = $3, completed_at = clock.now,
    expires_at = clock.now + $4 * interval '1 microsecond',
    purge_at = clock.now + ($4 + $5) * interval '1 microsecond'
    FROM {clock} WHERE {guard}
    RETURNING completed_at, lease_until > pg_catalog.clock_timestamp() AS current)
SELECT pg_catalog.ln((count(*) FILTER (WHERE current))::float8),
    (extract(epoch FROM max(completed_at)) * 1000000)::bigint FROM done
