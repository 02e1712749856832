-- ARGV: 1 id, 2 token, 3 the change's mark, 4 the guard's id and 5 its token, or '' and '', 6 retention,
-- 7 tombstone, 8 response, left out if it was too large.
-- Returns the time of the result, or nil if fenced.
local id, token, change, guard_id, guard_token, retention, tombstone, response = unpack(ARGV)
local record = read(record_key)
if is_made(record, change) then
    return record.completed_at
end
record = held(record_key, token)
local guard = guard_key and held(guard_key, guard_token)
if not record or (guard_key and not guard) then
    return nil
end
local function complete(key, id, record)
    record.state = COMPLETED
    record.lease_until = nil
    record.completed_at = now
    record.change = change
    keep_until(record, now + retention, tonumber(tombstone))
    save(key, id, record, response)
end
complete(record_key, id, record)
if guard then
    complete(guard_key, guard_id, guard)
end
return now
