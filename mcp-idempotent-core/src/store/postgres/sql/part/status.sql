-- Where a record stands, as the number of the state that it is in by now. 3: expired.
(CASE WHEN {is_in_doubt_by_clock} THEN 2
    WHEN state = 0 AND lease_until > clock.now THEN 0
    WHEN state IN (1, 4) AND expires_at > clock.now THEN state
    ELSE 3 END)::int
