-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- Locks the record of an attempt, whether its lease has ended or not. If somebody else has locked it, it fails at
-- once.
SELECT FROM {records} WHERE id {=} $1 AND token {=} $2 AND state {=} 0 FOR NO KEY UPDATE NOWAIT
