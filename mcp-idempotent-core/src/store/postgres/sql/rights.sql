-- Whether the role has the rights it needs, and whether the server is a standby.
SELECT pg_catalog.has_table_privilege('{records}', 'SELECT')
    AND pg_catalog.has_table_privilege('{records}', 'INSERT')
    AND pg_catalog.has_table_privilege('{records}', 'UPDATE')
    AND pg_catalog.has_table_privilege('{records}', 'DELETE')
    AND pg_catalog.has_sequence_privilege('{tokens}', 'USAGE'),
    pg_catalog.pg_is_in_recovery()
