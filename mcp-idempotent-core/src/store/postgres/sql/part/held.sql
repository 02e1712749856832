-- A lease that still holds. A row is changed under its own token, or not at all.
id {=} $1 AND token {=} $2 AND state {=} 0 AND lease_until {>} pg_catalog.clock_timestamp()
