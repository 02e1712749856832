-- $1 bigint  at most so many
-- Removes records past their end. A clock in a sub-select is read once, and can be used to search an
-- index. SKIP LOCKED waits for nobody.
DELETE FROM {records} WHERE ctid {=} ANY (ARRAY(SELECT ctid FROM {records}
    WHERE expires_at {<=} (SELECT pg_catalog.clock_timestamp())
    AND CASE WHEN state {=} 0 THEN {in_doubt_until} {<=} (SELECT pg_catalog.clock_timestamp())
    WHEN state {=} 1 THEN purge_at {<=} (SELECT pg_catalog.clock_timestamp()) ELSE true END
    LIMIT $1 FOR UPDATE SKIP LOCKED))
