-- Regular expressions. The host compiles a pattern once and keeps it.
local core, envoy = ...
local call, host, text = core.call, core.host, core.text
local expect, fail = core.expect, core.fail
local type, error, floor = type, error, math.floor
local host_find, host_captures, host_replace = host.re_find, host.re_captures, host.re_replace

local LARGEST = 2147483647

local re = {}
envoy.re = re

-- Raises for an answer that is none. The plugin is two levels above.
local function refuse(answer)
    if answer == -4 then
        error(text(call.data, call.length), 3)
    elseif answer == -5 then
        -- The watchdog ends the call; this says so should the plugin catch it before.
        error("the time budget of the call is used up", 3)
    end
    fail(answer, 2)
end

local function check(subject, pattern)
    if type(subject) ~= "string" then
        expect(subject, "string", "the text", 4)
    end
    expect(pattern, "string", "the pattern", 4)
end

-- The place, counted from 0, at which a search begins. As in string.find, negative ones count from the
-- end.
local function origin(init, length)
    if init == nil then
        return 0
    elseif type(init) ~= "number" then
        expect(init, "number", "the place to begin at", 4)
    end
    init = floor(init)
    if init < 0 then
        init = length + init + 1
    end
    if init < 1 then
        return 0
    elseif init > length then
        return init == length + 1 and length or -1
    end
    return init - 1
end

function re.match(subject, pattern)
    if type(subject) ~= "string" or type(pattern) ~= "string" then
        check(subject, pattern)
    end
    local answer = host_find(call, pattern, #pattern, subject, #subject, 0)
    if answer < 0 then
        refuse(answer)
    end
    return answer == 1
end

function re.find(subject, pattern, init)
    if type(subject) ~= "string" or type(pattern) ~= "string" then
        check(subject, pattern)
    end
    local from = origin(init, #subject)
    if from < 0 then
        return nil
    end
    local answer = host_find(call, pattern, #pattern, subject, #subject, from)
    if answer < 0 then
        refuse(answer)
    elseif answer == 0 then
        return nil
    end
    return call.number + 1, call.count
end

function re.captures(subject, pattern, init)
    if type(subject) ~= "string" or type(pattern) ~= "string" then
        check(subject, pattern)
    end
    local from = origin(init, #subject)
    if from < 0 then
        return nil
    end
    local count = host_captures(call, pattern, #pattern, subject, #subject, from)
    if count < 0 then
        refuse(count)
    elseif count == 0 then
        return nil
    end
    local groups = {}
    local list = call.pairs
    for i = 0, count - 1 do
        local group = list[i]
        local value = false
        if group.value_length >= 0 then
            value = text(group.value, group.value_length)
        end
        groups[i] = value
        if group.name_length > 0 then
            groups[text(group.name, group.name_length)] = value
        end
    end
    return groups
end

function re.replace(subject, pattern, replacement, limit)
    if type(subject) ~= "string" or type(pattern) ~= "string" then
        check(subject, pattern)
    end
    if type(replacement) ~= "string" then
        expect(replacement, "string", "the replacement")
    end
    if limit == nil then
        limit = LARGEST
    elseif type(limit) ~= "number" or not (limit >= 0 and limit <= LARGEST) then
        error("the limit must be a number from 0 to 2147483647", 2)
    end
    local count = host_replace(call, pattern, #pattern, subject, #subject, replacement, #replacement,
        limit)
    if count < 0 then
        refuse(count)
    end
    return text(call.data, call.length), count
end
