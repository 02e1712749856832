-- ARGV: 1 whether tombstones count. Returns what is found, or nil.
return found(read(record_key), ARGV[1] == '1')
