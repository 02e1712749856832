-- Begins every script. KEYS: the last token; the indexes, which are what is due for a sweep, and the
-- records by age, those without a result once more apart; the record, or what the keys of all records
-- begin with; and in a completion under a guard, the guard's record.
local last_token, due, open, records, record_key, guard_key = unpack(KEYS)

local IN_PROGRESS, COMPLETED, IN_DOUBT, TOMBSTONE, RELEASED = 0, 1, 2, 3, 4

local NUMBERS = {'state', 'token', 'origin', 'attempts', 'created_at', 'lease_until',
    'in_doubt_retention', 'completed_at', 'expires_at', 'purge_at', 'resolution', 'resolved_at'}
-- 'change' is the mark of the last change. The script of a change that is sent again, because its
-- answer was lost, knows itself by it.
local TEXTS = {'fingerprint', 'tool', 'application', 'scope', 'key_prefix', 'resolved_by', 'resolved_why', 'change'}

-- This server's clock, in microseconds. A Lua number is exact up to 2^53, which is in the year 2255.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Without this a large number would be written as 1.7e+15.
local function digits(number)
    return string.format('%.0f', number)
end

-- All of a record but its response; nil if there is none.
local function read(key)
    local numbers = redis.call('HMGET', key, unpack(NUMBERS))
    if not numbers[1] then
        return nil
    end
    local texts = redis.call('HMGET', key, unpack(TEXTS))
    local record = {}
    for i, field in ipairs(NUMBERS) do
        record[field] = tonumber(numbers[i] or nil)
    end
    for i, field in ipairs(TEXTS) do
        record[field] = texts[i] or nil
    end
    return record
end

-- When a sweep has something to do.
local function due_at(record)
    return record.state == COMPLETED and record.expires_at or record.purge_at
end

-- Writes the whole record anew, so that nothing of an earlier one is left, least of all its expiry.
local function save(key, id, record, response)
    local fields = {}
    for _, field in ipairs(NUMBERS) do
        if record[field] then
            table.insert(fields, field)
            table.insert(fields, digits(record[field]))
        end
    end
    for _, field in ipairs(TEXTS) do
        if record[field] then
            table.insert(fields, field)
            table.insert(fields, record[field])
        end
    end
    if response then
        table.insert(fields, 'response')
        table.insert(fields, response)
    end
    redis.call('DEL', key)
    redis.call('HSET', key, unpack(fields))
    redis.call('ZADD', due, digits(due_at(record)), id)
    local has_result = record.state == COMPLETED or record.state == TOMBSTONE
    redis.call('ZADD', records, digits(record.created_at), id)
    if has_result then
        redis.call('ZREM', open, id)
    else
        redis.call('ZADD', open, digits(record.created_at), id)
    end
    -- A record in progress or in doubt never goes by itself: what it stands for may have happened.
    if has_result or record.state == RELEASED then
        redis.call('PEXPIREAT', key, digits(math.ceil(record.purge_at / 1000)))
    end
end

local function remove(key, id)
    redis.call('UNLINK', key)
    redis.call('ZREM', due, id)
    redis.call('ZREM', open, id)
    redis.call('ZREM', records, id)
end

-- From `moment` on the record is absent, whatever its state; a tombstone may outlive it.
local function keep_until(record, moment, tombstone)
    record.expires_at = moment
    record.purge_at = moment + (tombstone or 0)
end

-- The clock makes a token grow even if a failover or a restart lost the last ones; the last token
-- makes it grow even if the clock was put back.
local function next_token()
    local token = math.max(now, tonumber(redis.call('GET', last_token) or '0') + 1)
    redis.call('SET', last_token, digits(token))
    return token
end

local function is_past(record)
    return record.expires_at <= now
end

-- Where the record stands, if it counts at all: its state, a lapse decided.
local function standing(record)
    if record.state == IN_PROGRESS and record.lease_until <= now then
        return IN_DOUBT
    end
    return record.state
end

-- What a look-up is told; nil if the key is free. `tombstones`: whether they count.
local function found(record, tombstones)
    if not record or record.state == RELEASED then
        return nil
    end
    if is_past(record) then
        local has_result = record.state == COMPLETED or record.state == TOMBSTONE
        if has_result and tombstones and record.purge_at > now then
            return {TOMBSTONE, record.fingerprint}
        end
        return nil
    end
    local state = standing(record)
    if state == IN_PROGRESS then
        return {state, record.fingerprint, record.lease_until - now}
    elseif state == IN_DOUBT then
        local since = record.completed_at or record.lease_until
        return {state, record.fingerprint, record.token, record.attempts, since}
    end
    local response = redis.call('HGET', record_key, 'response')
    return {state, record.fingerprint, record.completed_at, response}
end

-- The record if it is in progress under exactly this token, and its lease has not ended.
local function held(key, token)
    local record = read(key)
    if record and record.state == IN_PROGRESS and record.token == tonumber(token)
        and record.lease_until > now then
        return record
    end
    return nil
end

-- Whether this very change has been made.
local function is_made(record, change)
    return record and record.change == change
end

-- Removes records whose time is over, or reduces them to tombstones, at most `limit`;
-- how many. `base` is what the keys of the records begin with.
local function sweep(base, limit)
    local ids = redis.call('ZRANGEBYSCORE', due, '-inf', digits(now), 'LIMIT', 0, limit)
    for _, id in ipairs(ids) do
        local key = base .. id
        local record = read(key)
        if record and record.state == COMPLETED and is_past(record) and record.purge_at > now then
            record.state = TOMBSTONE
            save(key, id, record)
        elseif not record or record.purge_at <= now then
            remove(key, id)
        else
            -- The index is not believed.
            redis.call('ZADD', due, digits(due_at(record)), id)
        end
    end
    return #ids
end

-- What an operator sees of a record.
local function info(id, record)
    local status = standing(record)
    if is_past(record) then
        status = TOMBSTONE
    end
    return {id, record.fingerprint, status, record.token, record.origin or false, record.attempts,
        record.created_at,
        record.lease_until or false, record.completed_at or false,
        status ~= IN_PROGRESS and record.expires_at or false,
        record.tool, record.application or false, record.scope or false,
        record.key_prefix or false, record.resolution or false,
        record.resolved_by or false, record.resolved_why or false, record.resolved_at or false}
end

