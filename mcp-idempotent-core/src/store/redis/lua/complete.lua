-- ARGV: 1 id, 2 token, 3 the change's mark, 4 the guard's id, 5 its token and 6 its retention, or '' three
-- times, 7 retention, 8 tombstone, 9 response, left out if it was too large.
-- Returns the time of the result, or nil if fenced.
local id, token, change = unpack(ARGV, 1, 3)
local guard_id, guard_token, guard_retention = unpack(ARGV, 4, 6)
local retention, tombstone, response = unpack(ARGV, 7)
local record = read(record_key)
if is_made(record, change) then
    return record.completed_at
end
-- The caller may have lost every answer, and sends the same result under another mark.
if record and record.state == COMPLETED and record.token == tonumber(token)
    and (redis.call('HGET', record_key, 'response') or nil) == response then
    return record.completed_at
end
record = held(record_key, token)
local guard = guard_key and held(guard_key, guard_token)
if not record or (guard_key and not guard) then
    return nil
end
local function complete(key, id, record, retention)
    record.state = COMPLETED
    record.lease_until = nil
    record.completed_at = now
    record.change = change
    keep_until(record, now + retention, tonumber(tombstone))
    save(key, id, record, response)
end
complete(record_key, id, record, retention)
if guard then
    complete(guard_key, guard_id, guard, guard_retention)
end
return now
