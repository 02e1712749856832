-- ARGV: 1 id, 2 token, 3 period. Returns the time, or nil if fenced.
local id, token, period = unpack(ARGV)
local record = held(record_key, token)
if not record then
    return nil
end
record.lease_until = now + period
keep_until(record, record.lease_until + record.in_doubt_retention)
save(record_key, id, record)
return now
