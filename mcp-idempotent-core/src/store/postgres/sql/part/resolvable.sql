-- What an operator may resolve: an attempt in progress or in doubt, under the token that was seen.
id {=} $1 AND token {=} $2 AND (state {=} 0 AND lease_until {>} pg_catalog.clock_timestamp()
    OR {is_in_doubt_by_now})
