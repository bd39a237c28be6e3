-- JSON and Base64. The host parses and holds the text that is written; the tables are made and gone through
-- here, under the VM's memory budget, in a form that LuaJIT compiles.
local core = ...
local call, host, text = core.call, core.host, core.text
local expect = core.expect
local type, error, next, tostring = type, error, next, tostring
local setmetatable, rawset, format = setmetatable, rawset, string.format
local floor, huge = math.floor, math.huge
local host_parse = host.json_parse
local host_begin, host_end = host.json_begin, host.json_end
local host_string, host_raw = host.json_string, host.json_raw
local host_encode64, host_decode64 = host.base64_encode, host.base64_decode

local MAX_DEPTH = 100

local json = {}

local NULL = setmetatable({}, {
    __tostring = function() return "null" end,
    __newindex = function() error("envoy.json.null cannot be changed", 2) end,
    __metatable = false,
})

-- Marks arrays, so that an empty one stays one.
local ARRAY = { __metatable = "array" }
-- The tables of a configuration, which all streams of a VM share.
local function refuse()
    error("the configuration is shared by all streams and cannot be changed; copy what you need", 2)
end
local FROZEN_ARRAY = { __metatable = "configuration", __newindex = refuse }
local FROZEN = { __metatable = "configuration", __newindex = refuse }
-- The metatables by table, as `__metatable` hides them.
local debug_getmetatable = debug.getmetatable

-- Goes on reading the tape at `at`. `container` is the innermost one that is not full: `left` is how much is
-- to come, `place` how much has come to an array (of an object: -1). Those around it lie in `stack`, three
-- entries each. A call at the end instead of a loop: LuaJIT compiles a large loop that most often runs but
-- few times badly, and a function that calls itself in its middle not at all.
local function read_on(at, container, left, place, stack, depth, null, array_mark, object_mark)
    if left == 0 then
        if depth == 0 then
            return container
        end
        return read_on(at, stack[depth - 2], stack[depth - 1], stack[depth], stack, depth - 3,
            null, array_mark, object_mark)
    end
    local item = call.tape[at]
    local name
    if place == -1 then
        name = text(item.data, item.length)
        at = at + 1
        item = call.tape[at]
    end
    local kind = item.kind
    local value, count = null, 0
    if kind == 4 then
        value = text(item.data, item.length)
    elseif kind == 3 then
        value = item.number
    elseif kind == 6 then
        value, count = {}, item.length
        if object_mark then
            setmetatable(value, object_mark)
        end
    elseif kind == 5 then
        value, count = setmetatable({}, array_mark), item.length
    elseif kind == 2 then
        value = true
    elseif kind == 1 then
        value = false
    end
    if not container then
        if count == 0 then
            return value
        end
    else
        left = left - 1
        if place ~= -1 then
            place = place + 1
            name = place
        end
        if value ~= nil then
            rawset(container, name, value)
        end
        if count == 0 then
            return read_on(at + 1, container, left, place, stack, depth, null, array_mark, object_mark)
        end
        stack = stack or {}
        stack[depth + 1], stack[depth + 2], stack[depth + 3] = container, left, place
        depth = depth + 3
    end
    return read_on(at + 1, value, count, kind == 6 and -1 or 0, stack, depth, null, array_mark, object_mark)
end

-- Makes the value that is on the tape.
local function read(null, array_mark, object_mark)
    return (read_on(0, nil, 1, 0, nil, 0, null, array_mark, object_mark))
end

-- Raises for a document that is not read to its end.
local function refuse_document(answer, level)
    if answer == -7 then
        error(text(call.data, call.length), level)
    end
    core.fail(answer, level - 1)
end

function json.decode(document)
    if type(document) ~= "string" then
        expect(document, "string", "the document")
    end
    local answer = host_parse(call, document, #document)
    if answer == 0 then
        return nil, "not JSON: " .. text(call.data, call.length)
    elseif answer ~= 1 then
        refuse_document(answer, 3)
    end
    return (read(NULL, ARRAY, nil))
end

-- For configurations: null is nil, and nothing can be added.
function json.decode_frozen(document)
    local answer = host_parse(call, document, #document)
    if answer == 0 then
        error("not JSON: " .. text(call.data, call.length))
    elseif answer ~= 1 then
        refuse_document(answer, 2)
    end
    return (read(nil, FROZEN_ARRAY, FROZEN))
end

-- Keywords of JSON Schema whose empty value is an array.
local SCHEMA_ARRAYS = {
    required = true, enum = true, allOf = true, anyOf = true, oneOf = true, prefixItems = true,
    examples = true,
}

local write_on

-- Writes a value. Tables that are not complete yet lie in `stack`, three entries each: the table, how many
-- values an array has (of an object: -1), the last key or place. Answers nil and why where JSON has nothing
-- for the value. It goes on by a call at the end, as `read_on` does.
local function write(value, key, schema, stack, depth)
    local kind = type(value)
    local answer
    if kind == "string" then
        answer = host_string(call, value, #value)
    elseif kind == "number" then
        if value ~= value or value == huge or value == -huge then
            return nil, "JSON has no number for " .. tostring(value)
        end
        local digits
        if value == floor(value) and value > -1e15 and value < 1e15 then
            digits = format("%d", value)
        else
            digits = format("%.17g", value)
        end
        answer = host_raw(call, digits, #digits)
    elseif kind == "boolean" then
        answer = value and host_raw(call, "true", 4) or host_raw(call, "false", 5)
    elseif kind == "nil" or value == NULL then
        answer = host_raw(call, "null", 4)
    elseif kind == "table" then
        if depth == 3 * MAX_DEPTH then
            return nil, "the value is nested more than " .. MAX_DEPTH .. " deep, or contains itself"
        end
        stack = stack or {}
        local mark = debug_getmetatable(value)
        local count, length = 0, #value
        for _ in next, value do
            count = count + 1
        end
        stack[depth + 1] = value
        if mark == ARRAY or mark == FROZEN_ARRAY or (count > 0 and count == length)
            or (count == 0 and schema and SCHEMA_ARRAYS[key]) then
            stack[depth + 2], stack[depth + 3] = length, 0
            answer = host_raw(call, "[", 1)
        else
            stack[depth + 2], stack[depth + 3] = -1, nil
            answer = host_raw(call, "{", 1)
        end
        depth = depth + 3
    else
        return nil, "JSON has no value for a " .. kind
    end
    if answer ~= 0 then
        return nil, "not enough memory"
    end
    return write_on(schema, stack, depth)
end

-- Goes on with the next value of the innermost table, or ends it.
function write_on(schema, stack, depth)
    if depth == 0 then
        host_end(call)
        return text(call.data, call.length)
    end
    local list, size, place = stack[depth - 2], stack[depth - 1], stack[depth]
    if size == -1 then
        local name, value = next(list, place)
        if name ~= nil then
            if place ~= nil then
                host_raw(call, ",", 1)
            end
            stack[depth] = name
            local kind = type(name)
            if kind == "number" then
                name = tostring(name)
            elseif kind ~= "string" then
                return nil, "JSON has no member named by a " .. kind
            end
            if host_string(call, name, #name) ~= 0 then
                return nil, "not enough memory"
            end
            host_raw(call, ":", 1)
            return write(value, name, schema, stack, depth)
        end
        host_raw(call, "}", 1)
    elseif place < size then
        if place > 0 then
            host_raw(call, ",", 1)
        end
        stack[depth] = place + 1
        return write(list[place + 1], nil, schema, stack, depth)
    else
        host_raw(call, "]", 1)
    end
    return write_on(schema, stack, depth - 3)
end

local function encode(value, schema)
    host_begin(call)
    return write(value, nil, schema, nil, 0)
end

function json.encode(value)
    local made, problem = encode(value, false)
    if not made then
        error(problem, 2)
    end
    return made
end

-- A schema that was written as a Lua table.
function json.encode_schema(value)
    return encode(value, true)
end

core.encode_schema = json.encode_schema
core.encode_json = encode

-- The value that the host left on the tape.
function core.read_tape()
    return (read(NULL, ARRAY, nil))
end

function json.publish(envoy)
    envoy.json = {
        encode = json.encode,
        decode = json.decode,
        null = NULL,
        array = function(values)
            if type(values) ~= "table" then
                expect(values, "table", "the array")
            end
            return setmetatable(values, ARRAY)
        end,
    }
    envoy.base64 = {
        encode = function(bytes)
            if type(bytes) ~= "string" then
                expect(bytes, "string", "what to encode")
            end
            local answer = host_encode64(call, bytes, #bytes)
            if answer < 0 then
                core.fail(answer)
            end
            return text(call.data, call.length)
        end,
        decode = function(encoded)
            if type(encoded) ~= "string" then
                expect(encoded, "string", "what to decode")
            end
            local answer = host_decode64(call, encoded, #encoded)
            if answer == 1 then
                return text(call.data, call.length)
            elseif answer < 0 then
                core.fail(answer)
            end
            return nil, "not Base64"
        end,
    }
end

return json
