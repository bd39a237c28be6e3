-- JSON and Base64. The host parses; the tables are made here, under the VM's memory budget.
local core = ...
local call, host, text = core.call, core.host, core.text
local expect = core.expect
local type, error, pairs, next, tostring = type, error, pairs, next, tostring
local getmetatable, setmetatable, rawget = getmetatable, setmetatable, rawget
local gsub, format, concat, byte, find = string.gsub, string.format, table.concat, string.byte, string.find
local floor, huge = math.floor, math.huge
local host_parse = host.json_parse
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

-- Reads a value from the tape at `at`; answers it and the place after it.
local function read(at, null, array_mark, object_mark)
    local item = call.tape[at]
    local kind = item.kind
    if kind == 4 then
        return text(item.data, item.length), at + 1
    elseif kind == 3 then
        return item.number, at + 1
    elseif kind == 6 then
        local object = {}
        local count = item.length
        at = at + 1
        for _ = 1, count do
            local name = call.tape[at]
            name = text(name.data, name.length)
            local value
            value, at = read(at + 1, null, array_mark, object_mark)
            object[name] = value
        end
        if object_mark then
            setmetatable(object, object_mark)
        end
        return object, at
    elseif kind == 5 then
        local array = {}
        local count = item.length
        at = at + 1
        for i = 1, count do
            local value
            value, at = read(at, null, array_mark, object_mark)
            array[i] = value
        end
        return setmetatable(array, array_mark), at
    elseif kind == 2 then
        return true, at + 1
    elseif kind == 1 then
        return false, at + 1
    end
    return null, at + 1
end

function json.decode(document)
    if type(document) ~= "string" then
        expect(document, "string", "the document")
    end
    if host_parse(call, document, #document) ~= 1 then
        return nil, "not JSON: " .. text(call.data, call.length)
    end
    local value = read(0, NULL, ARRAY, nil)
    return value
end

-- For configurations: null is nil, and nothing can be added.
function json.decode_frozen(document)
    if host_parse(call, document, #document) ~= 1 then
        error("not JSON: " .. text(call.data, call.length))
    end
    local value = read(0, nil, FROZEN_ARRAY, FROZEN)
    return value
end

local ESCAPES = {
    ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r",
    ["\t"] = "\\t",
}
local function escape(character)
    return ESCAPES[character] or format("\\u%04x", byte(character))
end

local function quoted(value)
    if find(value, '[%c"\\\127]') then
        value = gsub(value, '[%c"\\\127]', escape)
    end
    return '"' .. value .. '"'
end

-- Keywords of JSON Schema whose empty value is an array.
local SCHEMA_ARRAYS = {
    required = true, enum = true, allOf = true, anyOf = true, oneOf = true, prefixItems = true,
    examples = true,
}

local write

local function write_array(value, count, out, depth, schema)
    out[#out + 1] = "["
    for i = 1, count do
        if i > 1 then
            out[#out + 1] = ","
        end
        write(value[i], out, depth + 1, schema)
    end
    out[#out + 1] = "]"
end

function write(value, out, depth, schema, key)
    local kind = type(value)
    if kind == "string" then
        out[#out + 1] = quoted(value)
    elseif kind == "number" then
        if value ~= value or value == huge or value == -huge then
            error("JSON has no number for " .. tostring(value), 0)
        end
        if value == floor(value) and value > -1e15 and value < 1e15 then
            out[#out + 1] = format("%d", value)
        else
            out[#out + 1] = format("%.17g", value)
        end
    elseif kind == "boolean" then
        out[#out + 1] = value and "true" or "false"
    elseif kind == "nil" or value == NULL then
        out[#out + 1] = "null"
    elseif kind == "table" then
        if depth > MAX_DEPTH then
            error("the value is nested more than " .. MAX_DEPTH .. " deep, or contains itself", 0)
        end
        local mark = debug_getmetatable(value)
        local count, length = 0, #value
        for _ in next, value do
            count = count + 1
        end
        if mark == ARRAY or mark == FROZEN_ARRAY or (count > 0 and count == length)
            or (count == 0 and schema and SCHEMA_ARRAYS[key]) then
            return write_array(value, length, out, depth, schema)
        end
        out[#out + 1] = "{"
        local first = true
        for name, member in next, value do
            local name_kind = type(name)
            if name_kind == "number" then
                name = tostring(name)
            elseif name_kind ~= "string" then
                error("JSON has no member named by a " .. name_kind, 0)
            end
            if not first then
                out[#out + 1] = ","
            end
            first = false
            out[#out + 1] = quoted(name)
            out[#out + 1] = ":"
            write(member, out, depth + 1, schema, name)
        end
        out[#out + 1] = "}"
    else
        error("JSON has no value for a " .. kind, 0)
    end
end

local pcall = pcall

local function encode(value, schema)
    local out = {}
    local done, problem = pcall(write, value, out, 1, schema)
    if not done then
        return nil, problem
    end
    return concat(out)
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
    local value = read(0, NULL, ARRAY, nil)
    return value
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
            host_encode64(call, bytes, #bytes)
            return text(call.data, call.length)
        end,
        decode = function(encoded)
            if type(encoded) ~= "string" then
                expect(encoded, "string", "what to decode")
            end
            if host_decode64(call, encoded, #encoded) == 1 then
                return text(call.data, call.length)
            end
            return nil, "not Base64"
        end,
    }
end

return json
