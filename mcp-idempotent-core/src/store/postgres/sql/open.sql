-- $1 bigint  the lock of this call
-- $2 bigint  the lock of its key
-- Both locks are taken in an earlier statement than any look-up, whose snapshot is then newer.
SELECT WHERE {set_up} AND {try_locks}
