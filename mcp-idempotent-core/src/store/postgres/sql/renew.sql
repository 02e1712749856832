-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- $3 bigint            lease in microseconds
-- Changes only `lease_until`; see the comment on that column in the migration.
UPDATE {records} SET lease_until = clock.now {+} ($3{microseconds})
FROM {durable_clock} WHERE {held} RETURNING (pg_catalog.date_part('epoch', clock.now) {*} '1e6')::bigint
