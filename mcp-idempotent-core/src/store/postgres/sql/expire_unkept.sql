-- $1 bytea    record id
-- $2 boolean  whether a tombstone counts as a record
-- As expire.sql, for lease mode. A released record stays while it is kept: the claim goes on from it.
DELETE FROM {records} WHERE id = $1 AND {is_past_by_now}
    AND (state <> 4 OR expires_at <= pg_catalog.clock_timestamp())
