-- $1 pg_catalog.bytea  record id
-- $2 pg_catalog.bytea  fingerprint
-- $3 pg_catalog.text   tool
-- $4 pg_catalog.text   key prefix
-- $5 bigint            lease in microseconds
-- $6 bigint            retention in doubt in microseconds
-- $7 pg_catalog.text   application
-- $8 pg_catalog.text   scope
-- $9 bigint            mark of the claim
-- Only a released record may be replaced. In a race the second gets no row. Its claim concludes that a
-- record exists.
INSERT INTO {records} AS r (id, fingerprint, state, token, origin, attempts,
    tool, application, scope, key_prefix, created_at, lease_until, in_doubt_retention, expires_at,
    mark)
SELECT $1, $2, 0, drawn.token, drawn.token, 1, $3, $7, $8, $4, clock.now,
    clock.now {+} ($5{microseconds}), $6,
    clock.now {+} (($5 {+} $6){microseconds}), $9 FROM {clock}, {drawn}
ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, state = 0,
    token = excluded.token, origin = coalesce(r.origin, excluded.token),
    attempts = CASE WHEN r.origin IS NULL THEN 1 ELSE r.attempts {+} 1 END,
    tool = excluded.tool, application = excluded.application, scope = excluded.scope,
    key_prefix = excluded.key_prefix,
    lease_until = excluded.lease_until,
    in_doubt_retention = excluded.in_doubt_retention,
    expires_at = excluded.expires_at, mark = excluded.mark
    WHERE r.state {=} 4
RETURNING r.token, r.origin, r.attempts
