-- $1 pg_catalog.bytea  record id
-- What a replay needs: fingerprint, result, its time, and whether this is a result within its retention. If
-- not, look_up.sql says what the record is. Every first call pays for each column, though it finds no row.
SELECT fingerprint, response, (pg_catalog.date_part('epoch', completed_at) {*} '1e6')::bigint,
    state {=} 1 AND expires_at {>} {arrival}
FROM {records} WHERE id {=} $1
