-- The transaction's idle timeout. It is a condition and not a column, because that costs the server less.
pg_catalog.set_config('idle_in_transaction_session_timeout', '{idle_timeout}', true) IS NOT NULL
