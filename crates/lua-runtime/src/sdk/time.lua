-- Clocks, and moments as text. Milliseconds everywhere.
local core, envoy = ...
local call, host, text = core.call, core.host, core.text
local expect, fail = core.expect, core.fail
local type, error = type, error
local host_clock, host_monotonic = host.clock, host.monotonic
local host_format, host_parse = host.format_time, host.parse_time

local time = {}
envoy.time = time

function time.now()
    local answer = host_clock(call)
    if answer ~= 1 then
        fail(answer)
    end
    return call.number
end

function time.monotonic()
    local answer = host_monotonic(call)
    if answer ~= 1 then
        fail(answer)
    end
    return call.number
end

local function formatter(kind)
    return function(moment)
        if moment == nil then
            local answer = host_clock(call)
            if answer ~= 1 then
                fail(answer)
            end
            moment = call.number
        elseif type(moment) ~= "number" then
            expect(moment, "number", "the moment")
        end
        local answer = host_format(call, kind, moment)
        if answer < 0 then
            fail(answer)
        elseif answer == 0 then
            error("the moment must be milliseconds since 1970, up to the year 9999", 2)
        end
        return text(call.data, call.length)
    end
end

local function parser(kind, problem)
    return function(value)
        if type(value) ~= "string" then
            expect(value, "string", "the date")
        end
        local answer = host_parse(call, kind, value, #value)
        if answer < 0 then
            fail(answer)
        elseif answer == 0 then
            return nil, problem
        end
        return call.number
    end
end

time.rfc3339 = formatter(0)
time.http_date = formatter(1)
time.parse_rfc3339 = parser(0, "not a date of RFC 3339")
time.parse_http_date = parser(1, "not a date of HTTP")
