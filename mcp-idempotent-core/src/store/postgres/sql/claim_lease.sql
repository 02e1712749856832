-- $1 int               the key's half of the lock of this call
-- $2 int               the other half
-- $3 bigint            the lock of the key
-- $4 pg_catalog.bytea  record id
-- $5 pg_catalog.bytea  fingerprint
-- $6 pg_catalog.text   tool
-- $7 pg_catalog.text   key prefix
-- $8 bigint            lease in microseconds
-- $9 bigint            retention in doubt in microseconds
-- $10 pg_catalog.text  application
-- $11 pg_catalog.text  scope
-- $12 bigint           mark of the claim
-- The claim in lease mode: takes the locks, and claims the key durably. Only a released record is replaced, while it is
-- kept. Otherwise no row is returned, and so there is a record. NOT EXISTS finds it without a write. A record that
-- is newer than the snapshot of this statement is found by ON CONFLICT. So the locks need no statement of
-- their own.
INSERT INTO {records} AS r (id, fingerprint, state, token, origin, attempts,
    tool, application, scope, key_prefix, created_at, lease_until, in_doubt_retention, expires_at,
    mark)
SELECT $4, $5, 0, drawn.token, drawn.token, 1, $6, $10, $11, $7, clock.now,
    clock.now {+} ($8{microseconds}), $9,
    clock.now {+} (($8 {+} $9){microseconds}), $12 FROM
    (SELECT pg_catalog.clock_timestamp() AS now WHERE {durable} AND {try_locks}
    AND NOT EXISTS (SELECT FROM {records} WHERE id {=} $4 AND state {<>} 4) OFFSET 0) AS clock, {drawn}
ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, state = 0,
    token = excluded.token, origin = coalesce(r.origin, excluded.token),
    attempts = CASE WHEN r.origin IS NULL THEN 1 ELSE r.attempts {+} 1 END,
    tool = excluded.tool, application = excluded.application, scope = excluded.scope,
    key_prefix = excluded.key_prefix,
    lease_until = excluded.lease_until,
    in_doubt_retention = excluded.in_doubt_retention,
    expires_at = excluded.expires_at, mark = excluded.mark
    WHERE r.state {=} 4 AND coalesce(r.expires_at {>} pg_catalog.clock_timestamp(), true)
RETURNING r.token, r.origin, r.attempts
