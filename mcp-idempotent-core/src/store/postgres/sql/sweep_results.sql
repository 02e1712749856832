-- $1 bigint  at most so many
-- Reduces expired records to tombstones.
UPDATE {records} SET state = 3, response = NULL, expires_at = purge_at
WHERE ctid {=} ANY (ARRAY(SELECT ctid FROM {records}
    WHERE state {=} 1 AND expires_at {<=} (SELECT pg_catalog.clock_timestamp())
    LIMIT $1 FOR UPDATE SKIP LOCKED))
