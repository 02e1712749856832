-- $1 pg_catalog.tid  before the first row
-- $2 pg_catalog.tid  after the last row
-- $3 bigint          the most rows
-- Removes records past their end, among the rows between two places (from Postgres 14 on, only these are
-- read). SKIP LOCKED waits for nobody.
DELETE FROM {records} WHERE ctid {=} ANY (ARRAY(SELECT ctid FROM {records}
    WHERE ctid {>} $1 AND ctid {<} $2 AND CASE WHEN state {=} 0
    THEN {in_doubt_until} {<=} (SELECT pg_catalog.clock_timestamp())
    WHEN state {=} 1 THEN coalesce(purge_at, expires_at) {<=} (SELECT pg_catalog.clock_timestamp())
    ELSE expires_at {<=} (SELECT pg_catalog.clock_timestamp()) END
    LIMIT $3 FOR UPDATE SKIP LOCKED))
