-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- $3 pg_catalog.bytea  result
-- When an attempt was completed with this result. It is asked when a completion found no row: an earlier
-- one may have done the work and lost its answer.
SELECT (pg_catalog.date_part('epoch', completed_at) {*} '1e6')::bigint
FROM {records} WHERE id {=} $1 AND token {=} $2 AND state {=} 1
    AND coalesce(response {=} $3, $3 IS NULL AND response IS NULL)
