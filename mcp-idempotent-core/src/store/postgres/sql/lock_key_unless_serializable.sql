-- $1 int     the key's half of the lock of this call
-- $2 int     the other half
-- $3 bigint  the lock of the key
-- The claim in transaction mode, where the store has to find out whether transactions are serializable: the first call
-- and about every 64th, and none if the store sets the level. All others claim by lock_key.sql. Either takes the locks, and
-- find.sql (seen.sql on the user's own pool) then looks for a record in the same batch.
-- finish.sql writes the record when the call ends, and the primary key lets only one commit.
-- Raises an error (substring of negative length) in a serializable transaction, where that look-up would make
-- unrelated calls fail to serialise. The look-up then comes before the transaction.
SELECT WHERE {set_up} AND {try_locks}
    AND pg_catalog.substr(''::pg_catalog.text, 1,
    {-} (pg_catalog.current_setting('transaction_isolation') {=} 'serializable')::int) IS NOT NULL
