-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
UPDATE {records} SET state = 2, lease_until = NULL, completed_at = clock.now,
    expires_at = clock.now {+} (in_doubt_retention{microseconds})
FROM {clock} WHERE {held} RETURNING (pg_catalog.date_part('epoch', completed_at) {*} '1e6')::bigint
