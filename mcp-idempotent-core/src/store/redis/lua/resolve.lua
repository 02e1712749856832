-- ARGV: 1 id, 2 the token that was seen, 3 the change's mark, 4 resolution, 5 who, 6 why, 7 how long
-- to keep the result or the trail, 8 tombstone, 9 response, left out if there is none.
-- Returns the time, 'changed' or 'not found'.
local id, token, change, resolution, who, why, kept, tombstone, response = unpack(ARGV)
local COMMITTED, NOT_COMMITTED = 1, 2
local record = read(record_key)
if not record then
    return 'not found'
end
if is_made(record, change) then
    return record.resolved_at
end
local state = standing(record)
if record.token ~= tonumber(token) or is_past(record)
    or (state ~= IN_PROGRESS and state ~= IN_DOUBT) then
    return 'changed'
end
record.token = next_token()
record.resolution = tonumber(resolution)
record.resolved_by, record.resolved_why, record.resolved_at = who, why, now
record.lease_until = nil
record.change = change
if record.resolution == COMMITTED then
    record.state = COMPLETED
    record.completed_at = now
else
    record.state = RELEASED
    record.completed_at = nil
    if record.resolution == NOT_COMMITTED then
        record.origin = nil
    end
end
keep_until(record, now + kept, tonumber(tombstone))
save(record_key, id, record, response)
return now
