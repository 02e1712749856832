-- $1 bytea   record id
-- $2 bigint  token
-- $3 bigint  how long to keep the record in microseconds
-- Frees the key, and keeps the record with its origin and number of attempts.
UPDATE {records} SET state = 4, lease_until = NULL,
    expires_at = clock.now + $3 * interval '1 microsecond'
FROM {clock} WHERE {guard} RETURNING (extract(epoch FROM clock.now) * 1000000)::bigint
