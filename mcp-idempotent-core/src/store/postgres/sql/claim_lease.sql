-- $1 int               the key's half of the lock of this call
-- $2 int               the other half
-- $3 bigint            the lock of the key
-- $4 pg_catalog.bytea  record id
-- $5 pg_catalog.bytea  fingerprint
-- $6 pg_catalog.text   labels
-- $7 bigint            lease in microseconds
-- $8 bigint            retention in doubt in microseconds
-- $9 bigint            mark of the claim
-- The claim in lease mode: takes the locks, and claims the key durably. Only a released record is replaced, while it is
-- kept. Otherwise no row is returned, and so there is a record. NOT EXISTS finds it without a write. A record that
-- is newer than the snapshot of this statement is found by ON CONFLICT. So the locks need no statement of
-- their own.
INSERT INTO {records} AS r (id, fingerprint, state, token, origin, attempts,
    labels, created_at, lease_until, in_doubt_retention, expires_at, mark)
SELECT $4, $5, 0, drawn.token, drawn.token, 1, $6, clock.now,
    clock.now {+} ($7{microseconds}), $8,
    clock.now {+} (($7 {+} $8){microseconds}), $9 FROM
    (SELECT pg_catalog.clock_timestamp() AS now WHERE {durable} AND {try_locks}
    AND NOT EXISTS (SELECT FROM {records} WHERE id {=} $4 AND state {<>} 4) OFFSET 0) AS clock, {drawn}
ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, state = 0,
    token = excluded.token, origin = coalesce(r.origin, excluded.token),
    attempts = CASE WHEN r.origin IS NULL THEN 1 ELSE r.attempts {+} 1 END,
    labels = excluded.labels, lease_until = excluded.lease_until,
    in_doubt_retention = excluded.in_doubt_retention,
    expires_at = excluded.expires_at, mark = excluded.mark
    WHERE r.state {=} 4 AND coalesce(r.expires_at {>} pg_catalog.clock_timestamp(), true)
RETURNING r.token, r.origin, r.attempts
