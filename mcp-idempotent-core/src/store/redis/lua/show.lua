-- ARGV: 1 id. Returns what an operator sees, and the response; or nil.
local record = read(record_key)
if not record then
    return nil
end
return {info(ARGV[1], record), redis.call('HGET', record_key, 'response')}
