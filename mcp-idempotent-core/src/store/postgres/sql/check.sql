-- The number by which to ask about an unrecorded transaction later, and the time.
SELECT pg_catalog.txid_current_if_assigned(),
    (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) {*} '1e6')::bigint
