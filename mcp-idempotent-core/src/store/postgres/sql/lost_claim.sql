-- $1 pg_catalog.bytea  record id
-- $2 bigint            mark of a claim
-- The lease of a claim whose answer was lost.
SELECT token, origin, attempts FROM {records}
WHERE id {=} $1 AND mark {=} $2 AND state {=} 0 AND lease_until {>} pg_catalog.clock_timestamp()
