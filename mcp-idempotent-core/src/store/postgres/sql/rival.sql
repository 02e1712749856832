-- $1 bigint  the key's half of the locks of its calls
-- $2 bigint  the other half of the lock of this call
-- Whether another call holds the lock of this key. A transaction that ends releases its locks one after
-- the other, so a key's lock alone does not say so.
SELECT pg_catalog.count(*) {>} 0 FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_database d ON d.oid {=} l.database
WHERE l.locktype {=} 'advisory' AND l.objsubid {=} 2 AND l.granted
    AND d.datname {=} pg_catalog.current_database()
    AND l.classid::bigint {=} $1 AND l.objid::bigint {<>} $2
