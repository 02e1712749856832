-- The transaction's idle timeout. It is a condition and not a column, because that costs the server less.
-- Then an error (a histogram of no buckets) where transactions begin read-only, as on every standby, so that no
-- handler runs in vain.
pg_catalog.set_config('idle_in_transaction_session_timeout', '{idle_timeout}', true) IS NOT NULL
    AND pg_catalog.width_bucket('0'::double precision, '0', '1',
    (pg_catalog.current_setting('transaction_read_only') {=} 'off')::int) IS NOT NULL
