-- $1 pg_catalog.bytea  record id
-- $2 bigint            mark of a claim
-- $3 smallint          the state to which it returns
-- Gives back what was claimed or taken over, and never used because its answer was lost. What there was
-- before is kept: an earlier attempt is in doubt again, or has an origin that the next one goes on from.
UPDATE {records} SET state = $3, lease_until = NULL, mark = NULL, completed_at = clock.now,
    origin = CASE WHEN attempts {>} 1 THEN origin END,
    expires_at = clock.now {+} ((CASE WHEN attempts {>} 1 THEN in_doubt_retention ELSE '0' END){microseconds})
FROM {clock} WHERE id {=} $1 AND mark {=} $2 AND state {=} 0
