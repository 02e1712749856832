-- $1 bytea  record id
-- Like seen.sql, for lease mode, where a claim continues from a released record.
SELECT pg_catalog.sqrt(-1::float8 - state) FROM {records} WHERE id = $1 AND state <> 4
