-- A new fencing token, drawn once.
(SELECT {token} AS token OFFSET 0) AS drawn
