-- $1 pg_catalog.bytea  record id
-- Lets a record be past its end. Draws a token, as leases and resolutions do.
UPDATE {records} SET token = {token}, expires_at = created_at, purge_at = created_at
WHERE id {=} $1 RETURNING token
