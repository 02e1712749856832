-- $1 bytea   record id
-- $2 bigint  token
UPDATE {records} SET state = 2, lease_until = NULL, completed_at = clock.now,
    expires_at = clock.now + in_doubt_retention * interval '1 microsecond'
FROM {clock} WHERE {guard} RETURNING (extract(epoch FROM completed_at) * 1000000)::bigint
