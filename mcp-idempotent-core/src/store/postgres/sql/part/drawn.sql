-- A new fencing token, drawn once.
(SELECT pg_catalog.nextval('{tokens}') AS token OFFSET 0) AS drawn
