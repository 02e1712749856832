-- A new fencing token: milliseconds, and eleven bits of the sequence. The sequence alone can repeat, after a
-- failover that lost what the primary had last written, or a restored backup. The time keeps tokens growing
-- then too. Below 2^53 until the year 2109, so that JavaScript can read it.
((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) {*} '1000')::bigint {<<} 11
    {|} (pg_catalog.nextval('{tokens}') {&} '2047'))
