-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- $3 pg_catalog.bytea  result
-- $4 bigint            retention in microseconds
-- $5 bigint            tombstone in microseconds
UPDATE {records} SET state = 1, response = $3, completed_at = clock.now,
    expires_at = clock.now {+} ($4{microseconds}),
    purge_at = CASE WHEN $5 {>} '0' THEN clock.now {+} (($4 {+} $5){microseconds}) END, lease_until = NULL
FROM {durable_clock} WHERE {held} RETURNING (pg_catalog.date_part('epoch', completed_at) {*} '1e6')::bigint
