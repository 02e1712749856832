-- $1 bigint  number of a transaction
SELECT pg_catalog.txid_status($1)
