-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- $3 pg_catalog.text   kind of the resolution
-- $4 pg_catalog.text   who
-- $5 pg_catalog.text   why
-- $6 bigint            how long to keep the record in microseconds
-- $7 boolean           whether the next attempt goes on from this one
-- Frees the key. Returns when it was resolved, and whether the record exists.
WITH done AS (UPDATE {records} SET state = 4, completed_at = NULL,
    expires_at = clock.now {+} ($6{microseconds}),
    origin = CASE WHEN $7 THEN origin END, {resolved}
    FROM {clock} WHERE {resolvable}
    RETURNING (pg_catalog.date_part('epoch', clock.now) {*} '1e6')::bigint AS at)
SELECT (SELECT at FROM done), EXISTS (SELECT 1 FROM {records} WHERE id {=} $1)
