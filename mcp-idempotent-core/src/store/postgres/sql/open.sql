-- $1 int     the key's half of the lock of this call
-- $2 int     the other half
-- $3 bigint  the lock of the key
-- This statement comes before any look-up, so a look-up's snapshot is newer than the locks.
SELECT WHERE {set_up} AND {try_locks}
