-- $1 pg_catalog.tid  before the first row
-- $2 pg_catalog.tid  after the last row
-- $3 bigint          the most rows
-- Reduces expired records to tombstones.
UPDATE {records} SET state = 3, response = NULL, expires_at = purge_at
WHERE ctid {=} ANY (ARRAY(SELECT ctid FROM {records}
    WHERE ctid {>} $1 AND ctid {<} $2
    AND state {=} 1 AND purge_at IS NOT NULL AND expires_at {<=} (SELECT pg_catalog.clock_timestamp())
    LIMIT $3 FOR UPDATE SKIP LOCKED))
