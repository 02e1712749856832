-- $1 pg_catalog.bytea  record id
-- $2 bigint            token of the attempt that is in doubt
-- $3 pg_catalog.bytea  fingerprint
-- $4 bigint            lease in microseconds
-- $5 bigint            retention in doubt in microseconds
-- $6 bigint            mark of the claim
UPDATE {records} AS r SET state = 0, token = drawn.token,
    origin = coalesce(r.origin, drawn.token), attempts = r.attempts {+} 1,
    lease_until = clock.now {+} ($4{microseconds}),
    in_doubt_retention = $5, completed_at = NULL, mark = $6,
    expires_at = clock.now {+} (($4 {+} $5){microseconds})
FROM {clock}, {drawn}
WHERE r.id {=} $1 AND r.token {=} $2 AND r.fingerprint {=} $3 AND {is_in_doubt_by_now}
RETURNING r.token, r.origin, r.attempts
