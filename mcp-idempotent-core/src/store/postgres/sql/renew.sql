-- $1 bytea   record id
-- $2 bigint  token
-- $3 bigint  lease in microseconds
-- Changes only `lease_until`; see the comment on that column in the migration.
UPDATE {records} SET lease_until = clock.now + $3 * interval '1 microsecond'
FROM {clock} WHERE {guard} RETURNING (extract(epoch FROM clock.now) * 1000000)::bigint
