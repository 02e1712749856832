-- Like the clock, in a statement whose transaction commits durably.
(SELECT pg_catalog.clock_timestamp() AS now WHERE {durable} OFFSET 0) AS clock
