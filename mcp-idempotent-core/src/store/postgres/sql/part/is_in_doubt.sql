-- Whether a record is in doubt, and within its retention.
(state {=} 0 OR state {=} 2) AND CASE WHEN state {=} 0 THEN lease_until {<=} {now}
    AND coalesce({in_doubt_until} {>} {now}, true) ELSE coalesce(expires_at {>} {now}, true) END
