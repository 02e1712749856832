-- The number by which to ask about an unrecorded transaction later, and the time.
SELECT pg_catalog.txid_current_if_assigned(),
    (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint
