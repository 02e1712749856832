-- $1 int     the key's half of the lock of this call
-- $2 int     the other half
-- $3 bigint  the lock of the key
-- Like open.sql, but raises an error (substring of negative length) in a serializable transaction, where
-- a look-up would make unrelated calls fail to serialise.
SELECT WHERE {set_up} AND {try_locks}
    AND pg_catalog.substr(''::pg_catalog.text, 1,
    {-} (pg_catalog.current_setting('transaction_isolation') {=} 'serializable')::int) IS NOT NULL
