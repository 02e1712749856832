-- Fails if a column is missing, because a table that was made by hand may be different.
SELECT id, fingerprint, state, token, origin, attempts, labels, response,
    lease_until, in_doubt_retention, mark, created_at, completed_at, expires_at, purge_at,
    resolution FROM {records} LIMIT 0
