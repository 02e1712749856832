-- $1 pg_catalog.bytea  record id
-- $2 bigint            token
-- Whether the end of an attempt, or something else about it, is being committed at this moment.
SELECT {is_being_changed} FROM {records} WHERE id {=} $1 AND token {=} $2 AND state {=} 0
