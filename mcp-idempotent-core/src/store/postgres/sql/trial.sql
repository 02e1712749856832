-- $1 pg_catalog.bytea  record id
-- Puts a record past its end. Draws a token, as leases and resolutions do.
UPDATE {records} SET token = {token}, expires_at = completed_at, purge_at = NULL
WHERE id {=} $1 RETURNING token
