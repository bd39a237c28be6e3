-- Keys and values that all workers share.
local core, envoy = ...
local call, host, text = core.call, core.host, core.text
local expect, fail = core.expect, core.fail
local type, error, huge = type, error, math.huge
local host_get, host_set, host_increment = host.store_get, host.store_set, host.store_increment
local host_delete, host_remaining = host.store_delete, host.store_remaining
local host_take = host.store_take

local shared = {}
envoy.shared = shared

-- Milliseconds; nil means that there is no end, which the host knows as -1.
local function lifetime(ttl)
    if ttl == nil then
        return -1
    elseif type(ttl) ~= "number" or not (ttl > 0 and ttl < 9e15) then
        error("the time to live must be a number of milliseconds above 0", 3)
    end
    return ttl
end

-- Raises for an answer that is none. The plugin is two levels above.
local function refuse(answer)
    if answer == -4 then
        error(text(call.data, call.length), 3)
    end
    fail(answer, 2)
end

function shared.get(key)
    if type(key) ~= "string" then
        expect(key, "string", "the key")
    end
    local answer = host_get(call, key, #key)
    if answer == 1 then
        return text(call.data, call.length)
    elseif answer == 2 then
        return call.number
    elseif answer == 3 then
        return call.number ~= 0
    elseif answer < 0 then
        fail(answer)
    end
    return nil
end

local function put(key, value, ttl, only_new)
    if type(key) ~= "string" then
        expect(key, "string", "the key", 4)
    end
    local kind = type(value)
    local answer
    if kind == "string" then
        answer = host_set(call, key, #key, 1, value, #value, 0, ttl, only_new)
    elseif kind == "number" then
        answer = host_set(call, key, #key, 2, "", 0, value, ttl, only_new)
    elseif kind == "boolean" then
        answer = host_set(call, key, #key, 3, "", 0, value and 1 or 0, ttl, only_new)
    else
        error("a shared value must be a string, a number or a boolean, not " .. kind, 3)
    end
    if answer == -4 then
        error(text(call.data, call.length), 3)
    elseif answer < 0 then
        fail(answer, 2)
    end
    return answer == 1
end

function shared.set(key, value, ttl)
    put(key, value, lifetime(ttl), 0)
end

function shared.add(key, value, ttl)
    return (put(key, value, lifetime(ttl), 1))
end

local function is_finite(number)
    return type(number) == "number" and number > -huge and number < huge
end

function shared.incr(key, amount, initial, ttl)
    if type(key) ~= "string" then
        expect(key, "string", "the key")
    end
    if amount == nil then
        amount = 1
    end
    if initial == nil then
        initial = 0
    end
    if not is_finite(amount) or not is_finite(initial) then
        error("the amount and what it begins with must be finite numbers", 2)
    end
    local answer = host_increment(call, key, #key, amount, initial, lifetime(ttl))
    if answer == 0 then
        error("the value of " .. key .. " is not a number", 2)
    elseif answer < 0 then
        refuse(answer)
    end
    return call.number
end

local function is_positive(number)
    return type(number) == "number" and number > 0 and number < 9e15
end

function shared.take(key, capacity, interval, amount)
    if type(key) ~= "string" then
        expect(key, "string", "the key")
    end
    if amount == nil then
        amount = 1
    end
    if not is_positive(capacity) or not is_positive(interval) or not is_positive(amount)
        or not is_positive(capacity * interval) then
        error("a bucket's capacity, its interval, and what is taken must be numbers above 0", 2)
    elseif amount > capacity then
        error("more is taken than the bucket holds", 2)
    end
    local answer = host_take(call, key, #key, amount, capacity, interval)
    if answer == 1 then
        return true, call.number
    elseif answer == 2 then
        return false, call.number
    elseif answer == 0 then
        error("the value of " .. key .. " is not a bucket", 2)
    end
    refuse(answer)
end

function shared.delete(key)
    if type(key) ~= "string" then
        expect(key, "string", "the key")
    end
    local answer = host_delete(call, key, #key)
    if answer < 0 then
        fail(answer)
    end
    return answer == 1
end

function shared.ttl(key)
    if type(key) ~= "string" then
        expect(key, "string", "the key")
    end
    local answer = host_remaining(call, key, #key)
    if answer < 0 then
        fail(answer)
    elseif answer == 1 then
        return call.number
    end
    return nil
end
