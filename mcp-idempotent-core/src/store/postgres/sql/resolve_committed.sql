-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- $3 pg_catalog.text   kind of the resolution
-- $4 pg_catalog.text   who
-- $5 pg_catalog.text   why
-- $6 pg_catalog.bytea  result
-- $7 bigint            retention in microseconds
-- $8 bigint            tombstone in microseconds
-- Returns when it was resolved, and whether the record exists.
WITH done AS (UPDATE {records} SET state = 1, response = $6, completed_at = clock.now,
    expires_at = clock.now {+} ($7{microseconds}),
    purge_at = CASE WHEN $8 {>} '0' THEN clock.now {+} (($7 {+} $8){microseconds}) END, {resolved}
    FROM {clock} WHERE {resolvable}
    RETURNING (pg_catalog.date_part('epoch', clock.now) {*} '1e6')::bigint AS at)
SELECT (SELECT at FROM done), EXISTS (SELECT 1 FROM {records} WHERE id {=} $1)
