-- $1 int     the key's half of the lock of this call
-- $2 int     the other half
-- $3 bigint  the lock of the key
-- Takes the locks of a key and of a call on it. It comes before any look-up, so that a look-up's snapshot is
-- newer than the locks.
SELECT WHERE {set_up} AND {try_locks}
