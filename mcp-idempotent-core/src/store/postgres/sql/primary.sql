-- Raises an error (division by zero) on a standby.
SELECT 1 {/} (NOT pg_catalog.pg_is_in_recovery())::int
