-- $1 bigint  age in microseconds
-- Whether a call that is older than this is in progress or in doubt. The engine's own records, whose
-- tools begin with `mcp-idempotent/`, are not calls.
SELECT EXISTS (SELECT FROM {records}, {clock}
    WHERE (state {=} 0 OR state {=} 2) AND created_at {<} (clock.now {-} ($1{microseconds}))
    AND NOT pg_catalog.starts_with(labels, 'mcp-idempotent/')
    AND coalesce(CASE WHEN state {=} 0 THEN {in_doubt_until} ELSE expires_at END {>} clock.now, true))
