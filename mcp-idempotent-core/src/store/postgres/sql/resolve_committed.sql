-- $1 bytea     record id
-- $2 bigint    token
-- $3 smallint  kind of the resolution
-- $4 text      who
-- $5 text      why
-- $6 bytea     result
-- $7 bigint    retention in microseconds
-- $8 bigint    tombstone in microseconds
-- Returns when it was resolved, and whether the record exists.
WITH done AS (UPDATE {records} SET state = 1, response = $6, completed_at = clock.now,
    expires_at = clock.now + $7 * interval '1 microsecond',
    purge_at = clock.now + ($7 + $8) * interval '1 microsecond', {resolved}
    FROM {clock} WHERE {resolvable}
    RETURNING (extract(epoch FROM resolved_at) * 1000000)::bigint AS at)
SELECT (SELECT at FROM done), EXISTS (SELECT 1 FROM {records} WHERE id = $1)
