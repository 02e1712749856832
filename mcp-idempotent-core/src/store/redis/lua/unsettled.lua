-- ARGV: 1 age, 2 how many of the oldest to pass over, 3 how many to look at, 4 what the tools of records
-- begin with that are not calls. Returns 'yes', 'no', or 'more'.
local age, offset, limit, internal = unpack(ARGV)
local ids = redis.call('ZRANGEBYSCORE', open, '-inf', '(' .. digits(now - age), 'LIMIT', offset, limit)
for _, id in ipairs(ids) do
    local record = read(record_key .. id)
    if record and record.state ~= RELEASED and not is_past(record)
        and string.sub(record.tool, 1, #internal) ~= internal then
        return 'yes'
    end
end
return #ids == tonumber(limit) and 'more' or 'no'
