-- ARGV: 1 id, 2 token, 3 the change's mark, 4 retention, 5 tombstone, 6 response, left out if it was
-- too large. Returns the time of the result, or nil if fenced.
local id, token, change, retention, tombstone, response = unpack(ARGV)
local record = read(record_key)
if is_made(record, change) then
    return record.completed_at
end
record = held(token)
if not record then
    return nil
end
record.state = COMPLETED
record.lease_until = nil
record.completed_at = now
record.change = change
keep_until(record, now + retention, tonumber(tombstone))
save(record_key, id, record, response)
return now
