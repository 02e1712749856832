-- $1 pg_catalog.tid  place of the record
-- $2 bigint          mark of the transaction
-- $3 bigint          retention in microseconds
-- $4 bigint          tombstone in microseconds
-- Turns the record of doubt_bound.sql into a finished one. It finds it by its place, because a search
-- would make other calls fail to serialise.
UPDATE {records} SET state = 1, in_doubt_retention = NULL,
    completed_at = {arrival}, expires_at = {arrival} {+} ($3{microseconds}),
    purge_at = CASE WHEN $4 {>} '0' THEN {arrival} {+} (($3 {+} $4){microseconds}) END
WHERE ctid {=} $1 AND token {=} $2
