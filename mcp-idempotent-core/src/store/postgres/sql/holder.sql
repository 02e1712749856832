-- $1 bigint  a lock
-- The session that holds it, and whether the server is a standby, on which no lock of ours can be seen.
-- The table lists the upper and the lower half of a bigint separately.
SELECT pg_catalog.max(l.pid), pg_catalog.pg_is_in_recovery() FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_database d ON d.oid {=} l.database
WHERE l.locktype {=} 'advisory' AND l.objsubid {=} 1 AND l.granted
    AND d.datname {=} pg_catalog.current_database()
    AND ((l.classid::bigint {<<} 32) {|} l.objid::bigint) {=} $1
