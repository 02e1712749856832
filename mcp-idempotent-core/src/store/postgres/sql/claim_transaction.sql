-- $1 int     the key's half of the lock of this call
-- $2 int     the other half
-- $3 bigint  the lock of the key
-- The claim in transaction mode: it takes the locks. In the same batch, find.sql then looks for a record.
-- finish.sql writes the record when the call ends, and the primary key lets only one commit.
-- Raises an error (substring of negative length) in a serializable transaction, where that look-up would make
-- unrelated calls fail to serialise. Such a transaction claims by lock_key.sql, after a look-up of its own.
SELECT WHERE {set_up} AND {try_locks}
    AND pg_catalog.substr(''::pg_catalog.text, 1,
    {-} (pg_catalog.current_setting('transaction_isolation') {=} 'serializable')::int) IS NOT NULL
