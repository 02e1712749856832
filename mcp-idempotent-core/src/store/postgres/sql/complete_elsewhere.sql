-- $1 pg_catalog.text   for each lease: record id, token, retention and tombstone in microseconds; colons
--                      between them, and a comma before the guard
-- $2 pg_catalog.bytea  result
-- Like complete.sql, for a transaction of another driver. Whoever runs it need not look at its answer: unless
-- every lease holds, a cast fails, and the transaction cannot be committed. The cast's text is what the author
-- reads. The lease's end is checked again after the write, as in complete_here.sql.
WITH asked AS (SELECT pg_catalog.decode(pg_catalog.split_part(part, ':', 1), 'hex') AS id,
    pg_catalog.split_part(part, ':', 2)::bigint AS token,
    pg_catalog.split_part(part, ':', 3)::bigint AS retention,
    pg_catalog.split_part(part, ':', 4)::bigint AS tombstone
    FROM pg_catalog.unnest(pg_catalog.string_to_array($1::pg_catalog.text, ',')) AS part),
done AS (UPDATE {records} AS r SET state = 1, response = $2::pg_catalog.bytea, completed_at = clock.now,
    expires_at = clock.now {+} (asked.retention{microseconds}),
    purge_at = CASE WHEN asked.tombstone {>} '0'
        THEN clock.now {+} ((asked.retention {+} asked.tombstone){microseconds}) END
    FROM {completion_clock}, asked
    WHERE r.id {=} asked.id AND r.token {=} asked.token
        AND r.state {=} 0 AND r.lease_until {>} pg_catalog.clock_timestamp()
    RETURNING r.lease_until {>} pg_catalog.clock_timestamp() AS current)
SELECT CASE WHEN (SELECT pg_catalog.count(*) FROM done WHERE current) {=} (SELECT pg_catalog.count(*) FROM asked)
    THEN 1 ELSE pg_catalog.format('mcp-idempotent: this attempt has lost its lease, so nothing is committed (%s)',
    (SELECT pg_catalog.count(*) FROM done))::int END
