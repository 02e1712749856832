-- For statements that do not make themselves durable.
SELECT WHERE {durable}
