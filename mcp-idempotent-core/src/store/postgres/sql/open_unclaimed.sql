-- $1 bigint  the transaction's own lock
-- While the lock is held, the commit may still happen.
SELECT pg_catalog.pg_advisory_xact_lock($1) WHERE {set_up}
