-- What an unrecorded transaction can be asked after by, and the moment.
SELECT pg_catalog.txid_current_if_assigned(),
    (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint
