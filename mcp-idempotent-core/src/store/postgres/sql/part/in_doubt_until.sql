-- How long a record in progress is kept if its lease is not renewed.
(lease_until {+} (in_doubt_retention{microseconds}))
