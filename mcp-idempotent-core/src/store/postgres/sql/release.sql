-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
DELETE FROM {records} WHERE {held}
RETURNING (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) {*} '1e6')::bigint
