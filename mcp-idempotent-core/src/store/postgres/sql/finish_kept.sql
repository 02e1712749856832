-- $1 pg_catalog.bytea  record id, then fingerprint
-- $2 pg_catalog.bytea  result
-- $3 bigint            mark of the transaction
-- $4 pg_catalog.text   labels
-- $5 bigint            retention in microseconds
-- $6 bigint            tombstone in microseconds
-- Like finish.sql, for a record that leaves a tombstone.
INSERT INTO {records} (id, fingerprint, state, token, labels, response, completed_at, expires_at, purge_at)
VALUES (pg_catalog.substr($1, 1, 32), pg_catalog.substr($1, 33), 1, $3, $4, $2,
    {arrival}, {arrival} {+} ($5{microseconds}), {arrival} {+} (($5 {+} $6){microseconds}))
