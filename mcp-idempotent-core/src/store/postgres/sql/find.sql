-- $1 pg_catalog.bytea  record id
-- $2 boolean           whether a tombstone counts as a record
-- Like look_up.sql, and also whether the record is past its end, and in the way of a new one.
SELECT {record}, {is_past_on_arrival} FROM {records} WHERE id {=} $1
