-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- How an attempt ended, and when. It is asked after the answer was lost.
SELECT state::int, (pg_catalog.date_part('epoch', coalesce(completed_at,
    pg_catalog.clock_timestamp())) {*} '1e6')::bigint
FROM {records} WHERE id {=} $1 AND token {=} $2
