-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- When an attempt was abandoned, or gave its key back and kept the record. It is asked after the answer
-- was lost.
SELECT (pg_catalog.date_part('epoch', coalesce(completed_at,
    pg_catalog.clock_timestamp())) {*} '1e6')::bigint
FROM {records} WHERE id {=} $1 AND token {=} $2 AND (state {=} 2 OR state {=} 4)
