-- First the lock of this call (key, tool and arguments), then the lock of the key. A busy one raises an
-- error: division by zero for the first, logarithm of zero for the second. CASE fixes the order, because
-- Postgres may evaluate conditions in any order.
CASE WHEN (1 {/} pg_catalog.pg_try_advisory_xact_lock($1, $2)::int) {=} 1
    THEN pg_catalog.ln(pg_catalog.pg_try_advisory_xact_lock($3)::int::double precision) {=} '0' END
