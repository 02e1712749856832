-- The trail of a resolution. The new token fences the attempt.
lease_until = NULL, token = {token},
    resolution = ARRAY[$3, $4, $5,
    pg_catalog.format('%s', (pg_catalog.date_part('epoch', clock.now) {*} '1e6')::bigint)]
