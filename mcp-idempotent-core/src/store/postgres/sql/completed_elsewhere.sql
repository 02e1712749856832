-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- What was committed under a token, also after its retention.
SELECT pg_catalog.encode(response, 'hex'), (pg_catalog.date_part('epoch', completed_at) {*} '1e6')::bigint
FROM {records} WHERE id {=} $1 AND token {=} $2 AND (state {=} 1 OR state {=} 3)
