-- $1 pg_catalog.bytea  record id
-- $2 boolean           whether a tombstone counts as a record
-- Like expire.sql, for lease mode. A released record stays for as long as it is kept, because the claim
-- continues from it.
DELETE FROM {records} WHERE id {=} $1 AND {is_past_by_now}
    AND (state {<>} 4 OR expires_at {<=} pg_catalog.clock_timestamp())
