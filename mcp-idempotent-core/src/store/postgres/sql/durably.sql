-- For a statement that does not see to it itself.
SELECT WHERE {durable}
