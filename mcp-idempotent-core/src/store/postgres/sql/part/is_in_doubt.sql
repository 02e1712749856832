-- Whether a record is in doubt, and within its retention.
state IN (0, 2) AND CASE state WHEN 0 THEN lease_until <= {now}
    AND coalesce({in_doubt_until} > {now}, true) ELSE coalesce(expires_at > {now}, true) END
