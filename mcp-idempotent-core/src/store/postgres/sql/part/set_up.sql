-- The idle timeout of the transaction. A condition, not a column: it costs the server less.
pg_catalog.set_config('idle_in_transaction_session_timeout', '{idle_timeout}', true) IS NOT NULL
