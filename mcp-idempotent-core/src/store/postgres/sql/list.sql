-- What an operator sees. Each listing fills in `{wanted}`, `{order}` and `{response}`. It does not show
-- when a tombstone ends.
SELECT pg_catalog.encode(id, 'hex'), {status}, {tool}, {key_prefix}, token, attempts,
    (pg_catalog.date_part('epoch', {created_at}) {*} '1e6')::bigint,
    (pg_catalog.date_part('epoch', (CASE WHEN state {=} 0 THEN lease_until END)) {*} '1e6')::bigint,
    (pg_catalog.date_part('epoch', completed_at) {*} '1e6')::bigint,
    (pg_catalog.date_part('epoch', (CASE WHEN state {=} 0 AND lease_until {<=} clock.now THEN {in_doubt_until}
    WHEN state {=} 1 OR state {=} 2 OR state {=} 4 THEN expires_at END)) {*} '1e6')::bigint,
    resolution[1], resolution[2], resolution[3], resolution[4], {response},
    pg_catalog.encode(fingerprint, 'hex'), origin, {application}, {scope}
FROM {records}, {clock} WHERE {wanted} {order}
