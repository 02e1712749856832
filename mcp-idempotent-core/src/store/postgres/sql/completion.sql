-- $1 bytea  record id
-- Whether a lease was completed by a transaction whose session was lost.
SELECT token, state::int, (extract(epoch FROM completed_at) * 1000000)::bigint
FROM {records} WHERE id = $1
