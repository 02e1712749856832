-- One reading of the clock for the whole statement. OFFSET 0 keeps Postgres from reading it again.
(SELECT pg_catalog.clock_timestamp() AS now OFFSET 0) AS clock
