-- ARGV: 1 which index: 'open' or 'records', 2 after this time and 3 this id, 4 how many to look at,
-- 5 status or '', 6 tool or ''.
-- Returns {the cursor's time and id, or nothing if the end was reached; the records that match}.
local index, after, after_id, limit, status, tool = unpack(ARGV)
index = index == 'open' and open or records
limit = tonumber(limit)
-- The ids of one moment are in the order of their bytes.
local skipped = redis.call('ZRANGEBYSCORE', index, after, after)
local entries = {}
for _, id in ipairs(skipped) do
    if id > after_id and #entries < limit then
        table.insert(entries, id)
    end
end
if #entries < limit then
    local rest = redis.call('ZRANGEBYSCORE', index, '(' .. after, '+inf', 'LIMIT', 0, limit - #entries)
    for _, id in ipairs(rest) do
        table.insert(entries, id)
    end
end
local matching = {}
for _, id in ipairs(entries) do
    local record = read(record_key .. id)
    if record then
        local seen = info(id, record)
        if (status == '' or seen[2] == tonumber(status)) and (tool == '' or record.tool == tool) then
            table.insert(matching, seen)
        end
    end
end
local cursor = {}
if #entries == limit then
    local last = entries[limit]
    cursor = {redis.call('ZSCORE', index, last), last}
end
return {cursor, matching}
