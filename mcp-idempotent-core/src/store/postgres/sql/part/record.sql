-- What a look-up returns: hexadecimal digits and microseconds. In a batch, values come as text, and the
-- session chooses the format of bytes. The clock is read once, even at the end of a long transaction: when
-- the message reached the server. A lease that has ended while its row is being changed was changed in time:
-- the change waits for its COMMIT, which may take long.
pg_catalog.encode(fingerprint, 'hex'),
    CASE WHEN state {=} 0 AND lease_until {<=} {arrival} THEN CASE WHEN {is_being_changed} THEN 0 ELSE 2 END
    WHEN state {=} 1 AND expires_at {<=} {arrival} THEN 3
    ELSE state END::int,
    (pg_catalog.date_part('epoch', (lease_until {-} {arrival})) {*} '1e6')::bigint,
    pg_catalog.encode(response, 'hex'),
    (pg_catalog.date_part('epoch', (CASE WHEN state {=} 0 THEN lease_until ELSE completed_at END)) {*} '1e6')::bigint,
    token, attempts
