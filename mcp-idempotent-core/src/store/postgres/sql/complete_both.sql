-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- $3 pg_catalog.bytea  result
-- $4 bigint            retention in microseconds
-- $5 bigint            tombstone in microseconds
-- $6 pg_catalog.bytea  record id of the guard
-- $7 bigint            token of the guard
-- $8 bigint            retention of the guard in microseconds
-- Like complete.sql, for a lease and its guard: both or neither.
WITH held AS (SELECT id, CASE WHEN id {=} $6 THEN $8 ELSE $4 END AS retention FROM {records}
    WHERE (id {=} $1 AND token {=} $2 OR id {=} $6 AND token {=} $7)
    AND state {=} 0 AND lease_until {>} pg_catalog.clock_timestamp() ORDER BY id FOR UPDATE)
UPDATE {records} AS r SET state = 1, response = $3, completed_at = clock.now,
    expires_at = clock.now {+} (held.retention{microseconds}),
    purge_at = CASE WHEN $5 {>} '0' THEN clock.now {+} ((held.retention {+} $5){microseconds}) END, lease_until = NULL
FROM {durable_clock}, held WHERE r.id {=} held.id AND (SELECT pg_catalog.count(*) FROM held) {=} 2
RETURNING (pg_catalog.date_part('epoch', completed_at) {*} '1e6')::bigint
