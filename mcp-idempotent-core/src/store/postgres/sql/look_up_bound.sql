-- Like look_up.sql, but with bytes and times as the server keeps them, for results in the binary format.
-- sqlx prepares it and binds its values.
SELECT fingerprint,
    CASE WHEN state {=} 0 AND lease_until {<=} {arrival} THEN 2
    WHEN state {=} 1 AND expires_at {<=} {arrival} THEN 3
    ELSE state END::int,
    lease_until, response,
    (CASE WHEN state {=} 0 THEN lease_until ELSE completed_at END),
    token, attempts, {arrival}
FROM {records} WHERE id {=} $1 AND NOT {is_past_on_arrival}
