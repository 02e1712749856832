-- Commits durably even if the session's default is `off`. Stronger settings stay as they are.
SELECT pg_catalog.set_config('synchronous_commit',
    CASE WHEN pg_catalog.current_setting('synchronous_commit') {=} 'off' THEN 'on'
    ELSE pg_catalog.current_setting('synchronous_commit') END, true)
