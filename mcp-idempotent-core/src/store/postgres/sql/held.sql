-- $1 bytea  record id
-- As seen.sql, for lease mode, which goes on from a released record.
SELECT pg_catalog.sqrt(-1::float8 - state) FROM {records} WHERE id = $1 AND state <> 4
