-- Whether a record is past its end. `$2` says whether its tombstone counts as a record. A look-up ignores
-- a released record, which is in nobody's way.
coalesce(CASE WHEN state {=} 0 THEN {in_doubt_until} {<=} {now}
    WHEN state {=} 4 THEN true
    WHEN $2 AND (state {=} 1 OR state {=} 3) THEN coalesce(purge_at, expires_at) {<=} {now}
    WHEN state {=} 3 THEN true
    ELSE expires_at {<=} {now} END, false)
