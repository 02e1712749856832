-- ARGV: 1 id, 2 token, 3 the change's mark, 4 how long to keep the origin. Returns the time, or nil
-- if fenced.
local id, token, change, kept = unpack(ARGV)
local record = read(record_key)
if is_made(record, change) and record.state == RELEASED then
    return now
end
record = held(record_key, token)
if not record then
    return nil
end
if tonumber(kept) == 0 then
    remove(record_key, id)
    return now
end
record.state = RELEASED
record.lease_until = nil
record.change = change
keep_until(record, now + kept)
save(record_key, id, record)
return now
