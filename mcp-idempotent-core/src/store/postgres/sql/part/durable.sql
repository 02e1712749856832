-- Lets the transaction commit durably even if the session's default is `off`. Stronger settings stay as
-- they are. It is a condition and not a statement of its own, because that costs the server less.
CASE WHEN pg_catalog.current_setting('synchronous_commit') {=} 'off'
    THEN pg_catalog.set_config('synchronous_commit', 'on', true) ELSE '' END IS NOT NULL
