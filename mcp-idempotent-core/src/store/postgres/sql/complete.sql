-- $1 bytea   record id
-- $2 bigint  token
-- $3 bytea   result
-- $4 bigint  retention in microseconds
-- $5 bigint  tombstone in microseconds
UPDATE {records} SET state = 1, response = $3, completed_at = clock.now,
    expires_at = clock.now + $4 * interval '1 microsecond',
    purge_at = clock.now + ($4 + $5) * interval '1 microsecond', lease_until = NULL
FROM {clock} WHERE {guard} RETURNING (extract(epoch FROM completed_at) * 1000000)::bigint
