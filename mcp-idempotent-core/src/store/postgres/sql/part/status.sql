-- The number of the state that a record is in now. 3 means expired.
(CASE WHEN {is_in_doubt_by_clock} THEN 2
    WHEN state {=} 0 AND lease_until {>} clock.now THEN 0
    WHEN (state {=} 1 OR state {=} 4) AND expires_at {>} clock.now THEN state
    ELSE 3 END)::int
