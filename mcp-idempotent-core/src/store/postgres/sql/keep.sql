-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- $3 bigint            how long to keep the record in microseconds
-- Frees the key, and keeps the record with its origin and number of attempts.
UPDATE {records} SET state = 4, lease_until = NULL,
    expires_at = clock.now {+} ($3{microseconds})
FROM {clock} WHERE {held} RETURNING (pg_catalog.date_part('epoch', clock.now) {*} '1e6')::bigint
