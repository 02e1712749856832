-- How many blocks the table has.
SELECT pg_catalog.pg_relation_size('{records}'::pg_catalog.regclass)
    {/} pg_catalog.to_number(pg_catalog.current_setting('block_size'), '999999')::bigint
