-- $1 pg_catalog.bytea  record id
-- $2 boolean           whether a tombstone counts as a record
-- Makes room for a claim, so that the end is a plain INSERT. With ON CONFLICT DO UPDATE, the second in a
-- race would update no row, get no error, and commit its effect without a record.
DELETE FROM {records} WHERE id {=} $1 AND {is_past_by_now}
