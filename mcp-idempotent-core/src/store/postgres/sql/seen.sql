-- $1 pg_catalog.bytea  record id
-- Raises an error (square root of a negative number) if there is a record, expired or not. A later
-- look-up outside the transaction says what that means.
SELECT pg_catalog.sqrt((-1 {-} state)::double precision) FROM {records} WHERE id {=} $1
