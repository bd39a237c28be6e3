-- Percent-encoding, and queries.
local core, envoy, strings = ...
local call, host, text = core.call, core.host, core.text
local expect, fail, to_text, take_pairs = core.expect, core.fail, core.to_text, core.take_pairs
local type, error, pairs, ipairs = type, error, core.pairs, core.ipairs
local sort_texts, concat = strings.sort_texts, strings.concat
local host_encode, host_decode = host.url_encode, host.url_decode
local host_parse = host.parse_query

local url = {}
envoy.url = url

local function encode(value)
    local answer = host_encode(call, value, #value)
    if answer ~= 1 then
        fail(answer, 2)
    end
    return text(call.data, call.length)
end

function url.encode(value)
    if type(value) ~= "string" then
        expect(value, "string", "what to encode")
    end
    return encode(value)
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

local function encoded(name, value)
    return name .. "=" .. encode(to_text(value, "the value of parameter " .. name, 4))
end

-- Here and not in the host: sorting and encoding end with the time budget of the call.
function url.build_query(parameters)
    if type(parameters) ~= "table" then
        expect(parameters, "table", "the parameters")
    end
    local names, count = {}, 0
    for name in pairs(parameters) do
        if type(name) ~= "string" then
            expect(name, "string", "a parameter's name")
        end
        count = count + 1
        names[count] = name
    end
    sort_texts(names, count)
    local pieces, used = {}, 0
    for index = 1, count do
        local value = parameters[names[index]]
        local name = encode(names[index])
        if type(value) == "table" then
            for _, one in ipairs(value) do
                used = used + 1
                pieces[used] = encoded(name, one)
            end
        else
            used = used + 1
            pieces[used] = encoded(name, value)
        end
    end
    return concat(pieces, "&", 1, used)
end
