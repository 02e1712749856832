-- $1 pg_catalog.bytea  record id
-- $2 boolean           whether a tombstone counts as a record
SELECT {record} FROM {records} WHERE id {=} $1 AND NOT {is_past_on_arrival}
