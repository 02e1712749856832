-- $1 bigint  the lock of a transaction
-- Raises an error (division by zero) while the transaction's session holds the lock.
SELECT 1 {/} pg_catalog.pg_try_advisory_xact_lock($1)::int
