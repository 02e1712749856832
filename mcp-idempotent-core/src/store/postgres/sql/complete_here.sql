-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- $3 pg_catalog.bytea  result
-- $4 bigint            retention in microseconds
-- $5 bigint            tombstone in microseconds
-- Like complete.sql, but inside a handler's transaction, where only an error prevents the COMMIT that
-- follows. The logarithm of zero rows is that error. The lease's end is checked again after the write,
-- because the first check may have come before a wait for a lock on the row.
WITH done AS (UPDATE {records} SET state = 1, response = $3, completed_at = clock.now,
    expires_at = clock.now {+} ($4{microseconds}),
    purge_at = CASE WHEN $5 {>} '0' THEN clock.now {+} (($4 {+} $5){microseconds}) END
    FROM {clock} WHERE {held}
    RETURNING completed_at, lease_until {>} pg_catalog.clock_timestamp() AS current)
SELECT pg_catalog.ln((pg_catalog.count(*) FILTER (WHERE current))::double precision),
    (pg_catalog.date_part('epoch', pg_catalog.max(completed_at)) {*} '1e6')::bigint FROM done
