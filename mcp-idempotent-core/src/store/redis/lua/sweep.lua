-- ARGV: 1 limit. Returns how many.
return sweep(record_key, ARGV[1])
