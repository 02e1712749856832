-- Whether a transaction that is still running has changed or locked the row. Ended transactions hold no lock.
-- One that ends at this moment is visible to a later statement, and to none before.
EXISTS (SELECT FROM pg_catalog.pg_locks AS l WHERE l.locktype {=} 'transactionid' AND l.transactionid {=} xmax)
