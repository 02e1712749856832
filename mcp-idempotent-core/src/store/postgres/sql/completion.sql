-- $1 bytea  record id
-- Whether a transaction whose session was lost has completed a lease.
SELECT token, state::int, (extract(epoch FROM completed_at) * 1000000)::bigint
FROM {records} WHERE id = $1
