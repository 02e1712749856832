-- ARGV: 1 id, 2 the token that left it in doubt, 3 fingerprint, 4 lease, 5 retention in doubt, 6 the
-- change's mark. Returns {token, origin, attempts}, or nil.
local id, token, fingerprint, lease, in_doubt_retention, change = unpack(ARGV)
local record = read(record_key)
if is_made(record, change) and record.state == IN_PROGRESS then
    return {record.token, record.origin, record.attempts}
end
if not record or is_past(record) or standing(record) ~= IN_DOUBT
    or record.token ~= tonumber(token) or record.fingerprint ~= fingerprint then
    return nil
end
record.state = IN_PROGRESS
record.token = next_token()
record.origin = record.origin or record.token
record.attempts = record.attempts + 1
record.completed_at = nil
record.lease_until = now + lease
record.in_doubt_retention = tonumber(in_doubt_retention)
record.change = change
keep_until(record, record.lease_until + record.in_doubt_retention)
save(record_key, id, record)
return {record.token, record.origin, record.attempts}
