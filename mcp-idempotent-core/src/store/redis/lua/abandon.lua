-- ARGV: 1 id, 2 token, 3 the change's mark. Returns the time, or nil if fenced.
local id, token, change = unpack(ARGV)
local record = read(record_key)
if is_made(record, change) and record.state == IN_DOUBT then
    return record.completed_at
end
record = held(record_key, token)
if not record then
    return nil
end
record.state = IN_DOUBT
record.lease_until = nil
record.completed_at = now
record.change = change
keep_until(record, now + record.in_doubt_retention)
save(record_key, id, record)
return now
