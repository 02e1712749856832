-- ARGV: 1 which index: 'open' or 'records', 2 after this time and 3 this id, 4 how many to look at;
-- then what to look for, or '' for any: 5 status, 6 tool, 7 application, 8 scope, 9 what the key begins
-- with.
-- Returns {the cursor's time and id, or nothing if the end was reached; the records that match}.
local index, after, after_id, limit, status, tool, application, scope, key_prefix = unpack(ARGV)
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
local function is(wanted, found)
    return wanted == '' or wanted == found
end
local matching = {}
for _, id in ipairs(entries) do
    local record = read(record_key .. id)
    if record then
        local seen = info(id, record)
        if is(status, digits(seen[3])) and is(tool, record.tool) and is(application, record.application)
            and is(scope, record.scope)
            and is(key_prefix, string.sub(record.key_prefix or '', 1, #key_prefix)) then
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
