-- $1 bigint  the lock of this call
-- $2 bigint  the lock of its key
-- This statement comes before any look-up, so a look-up's snapshot is newer than the locks.
SELECT WHERE {set_up} AND {try_locks}
