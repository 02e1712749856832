-- $1 pg_catalog.bytea  record id
-- Whether a transaction whose session was lost has completed a lease.
SELECT token, state::int, (pg_catalog.date_part('epoch', completed_at) {*} '1e6')::bigint
FROM {records} WHERE id {=} $1
