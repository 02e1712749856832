-- $1 pg_catalog.bytea  record id
-- Like seen.sql, for lease mode, where a claim continues from a released record.
SELECT pg_catalog.sqrt((-1 {-} state)::double precision) FROM {records} WHERE id {=} $1 AND state {<>} 4
