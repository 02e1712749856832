-- $1 bigint  at most so many
-- Renewals leave `expires_at` alone, so that they touch no index. The sweep moves it forward.
UPDATE {records} SET expires_at = {in_doubt_until}
WHERE ctid {=} ANY (ARRAY(SELECT ctid FROM {records}
    WHERE state {=} 0 AND expires_at {<=} (SELECT pg_catalog.clock_timestamp())
    AND {in_doubt_until} {>} (SELECT pg_catalog.clock_timestamp())
    LIMIT $1 FOR UPDATE SKIP LOCKED))
