-- What an operator sees. Each listing fills in `{wanted}`, `{order}` and `{response}`. It does not show
-- when a tombstone ends.
SELECT pg_catalog.encode(id, 'hex'), {status}, tool, key_prefix, token, attempts,
    (extract(epoch FROM created_at) * 1000000)::bigint,
    (extract(epoch FROM (CASE state WHEN 0 THEN lease_until END)) * 1000000)::bigint,
    (extract(epoch FROM completed_at) * 1000000)::bigint,
    (extract(epoch FROM (CASE WHEN state = 0 AND lease_until <= clock.now THEN {in_doubt_until}
    WHEN state IN (1, 2, 4) THEN expires_at END)) * 1000000)::bigint,
    resolved_kind::int, resolved_by, resolved_why,
    (extract(epoch FROM resolved_at) * 1000000)::bigint, {response}
FROM {records}, {clock} WHERE {wanted} {order}
