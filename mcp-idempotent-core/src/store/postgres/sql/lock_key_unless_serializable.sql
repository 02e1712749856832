-- $1 int     the key's half of the lock of this call
-- $2 int     the other half
-- $3 bigint  the lock of the key
-- lock_key.sql where the store has to find out whether transactions are serializable: for the first call and about
-- every 64th, and none if the store sets the level. In a serializable transaction it raises an error (substring of
-- negative length): there the look-up after it would make unrelated calls fail to serialise. It then comes before
-- the transaction.
SELECT WHERE {set_up} AND {try_locks}
    AND pg_catalog.substr(''::pg_catalog.text, 1,
    {-} (pg_catalog.current_setting('transaction_isolation') {=} 'serializable')::int) IS NOT NULL
