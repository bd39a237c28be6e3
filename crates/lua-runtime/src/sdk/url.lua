-- Percent-encoding, and queries.
local core, envoy = ...
local call, host, text = core.call, core.host, core.text
local expect, fail, take_pairs, stage_pairs = core.expect, core.fail, core.take_pairs, core.stage_pairs
local type, error = type, error
local host_encode, host_decode = host.url_encode, host.url_decode
local host_parse, host_build = host.parse_query, host.build_query

local url = {}
envoy.url = url

function url.encode(value)
    if type(value) ~= "string" then
        expect(value, "string", "what to encode")
    end
    local answer = host_encode(call, value, #value)
    if answer ~= 1 then
        fail(answer)
    end
    return text(call.data, call.length)
end

function url.decode(value)
    if type(value) ~= "string" then
        expect(value, "string", "what to decode")
    end
    local answer = host_decode(call, value, #value)
    if answer ~= 1 then
        fail(answer)
    end
    return text(call.data, call.length)
end

function url.parse_query(query, max_args)
    if type(query) ~= "string" then
        expect(query, "string", "the query")
    end
    if max_args == nil then
        max_args = 100
    elseif type(max_args) ~= "number" then
        expect(max_args, "number", "max_args")
    elseif not (max_args >= 1 and max_args <= 10000) then
        error("max_args must be from 1 to 10000", 2)
    end
    local count = host_parse(call, query, #query, max_args)
    if count < 0 then
        fail(count)
    end
    return take_pairs(count)
end

function url.build_query(parameters)
    if type(parameters) ~= "table" then
        expect(parameters, "table", "the parameters")
    end
    stage_pairs(parameters, "parameter")
    local answer = host_build(call)
    if answer ~= 1 then
        fail(answer)
    end
    return text(call.data, call.length)
end
