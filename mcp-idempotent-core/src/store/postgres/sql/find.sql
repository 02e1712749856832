-- $1 pg_catalog.bytea  record id
-- What a replay needs: fingerprint, result, and its time. The fingerprint says whether this is a result
-- within its retention. If it is NULL, look_up.sql says what the record is. Every first call pays for each
-- column, though it finds no row.
SELECT CASE WHEN state {=} 1 AND expires_at {>} {arrival} THEN fingerprint END, response,
    (pg_catalog.date_part('epoch', completed_at) {*} '1e6')::bigint
FROM {records} WHERE id {=} $1
