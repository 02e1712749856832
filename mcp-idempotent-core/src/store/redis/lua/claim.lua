-- ARGV: 1 id, 2 whether tombstones count, 3 fingerprint, 4 lease, 5 retention in doubt, 6 the change's
-- mark, 7 tool, 8 application, 9 scope, 10 key prefix, each of the last three empty if there is none.
-- Returns {'lease', token, origin, attempts}, or {'record', what is found}.
local id, tombstones, fingerprint, lease, in_doubt_retention, change = unpack(ARGV)
local tool, application, scope, key_prefix = unpack(ARGV, 7)
local before = read(record_key)
if is_made(before, change) and before.state == IN_PROGRESS then
    return {'lease', before.token, before.origin, before.attempts}
end
local record = found(before, tombstones == '1')
if record then
    return {'record', record}
end
if before and (before.state ~= RELEASED or is_past(before)) then
    before = nil
end
-- Where nobody sweeps, the claims do.
sweep(string.sub(record_key, 1, -#id - 1), 2)
local token = next_token()
local continues = before and before.origin
record = {
    fingerprint = fingerprint,
    state = IN_PROGRESS,
    token = token,
    origin = continues or token,
    attempts = continues and before.attempts + 1 or 1,
    tool = tool,
    application = application ~= '' and application or nil,
    scope = scope ~= '' and scope or nil,
    key_prefix = key_prefix ~= '' and key_prefix or nil,
    created_at = before and before.created_at or now,
    lease_until = now + lease,
    in_doubt_retention = tonumber(in_doubt_retention),
    resolution = before and before.resolution,
    resolved_by = before and before.resolved_by,
    resolved_why = before and before.resolved_why,
    resolved_at = before and before.resolved_at,
    change = change,
}
keep_until(record, record.lease_until + record.in_doubt_retention)
save(record_key, id, record)
return {'lease', record.token, record.origin, record.attempts}
