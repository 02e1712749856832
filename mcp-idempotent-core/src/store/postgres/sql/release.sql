-- $1 bytea   record id
-- $2 bigint  token
DELETE FROM {records} WHERE {guard}
RETURNING (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint
