-- $1 bytea    record id
-- $2 boolean  whether a tombstone counts as a record
-- Makes room for a claim, so that finishing is a plain INSERT. With ON CONFLICT DO UPDATE instead, a
-- second racer would update no row, without an error, and commit its effect without a record.
DELETE FROM {records} WHERE id = $1 AND {is_past_by_now}
