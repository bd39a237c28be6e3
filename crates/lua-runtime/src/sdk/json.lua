-- JSON and Base64. The host parses and holds the text that is written; the tables are made and gone through
-- here, under the VM's memory budget, in a form that LuaJIT compiles.
local core = ...
local call, host, text = core.call, core.host, core.text
local expect = core.expect
local type, error, next, tostring = type, error, next, tostring
local setmetatable, rawget, rawset, rawlen, byte = setmetatable, rawget, rawset, rawlen, string.byte
local huge, sort = math.huge, table.sort
local host_parse = host.json_parse
local host_begin, host_end = host.json_begin, host.json_end
local host_string, host_raw, host_number = host.json_string, host.json_raw, host.json_number
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

-- An object that was decoded has the list of its names, in their order, as its metatable: its *shape*. Objects with the
-- same names share one. At 0 a shape has this mark. Order is all that follows from it, so a plugin that changes one
-- harms nothing else.
local SHAPE = {}

-- An integer that no number of Lua holds exactly: its digits are at 1.
local function refuse_arithmetic()
    error("an integer beyond 2^53 cannot be calculated with; tonumber(tostring(value)) rounds it", 2)
end
-- Whether a text is an integer as JSON has it. A pattern would not be compiled.
local function is_integer(digits)
    local size, at = #digits, 1
    if byte(digits, 1) == 45 then
        at = 2
    end
    if at > size or size > at and byte(digits, at) == 48 then
        return false
    end
    for i = at, size do
        local digit = byte(digits, i)
        if digit < 48 or digit > 57 then
            return false
        end
    end
    return true
end

-- Whether the first has fewer digits, or the same number of smaller ones.
local function is_smaller(a, b)
    a, b = a[1], b[1]
    local negative = byte(a, 1) == 45
    if negative ~= (byte(b, 1) == 45) then
        return negative
    end
    if negative then
        a, b = b, a
    end
    if #a ~= #b then
        return #a < #b
    end
    return a < b
end
local INTEGER = {
    __metatable = "integer",
    __newindex = function() error("an integer cannot be changed", 2) end,
    __tostring = function(value) return value[1] end,
    __concat = function(a, b) return tostring(a) .. tostring(b) end,
    __eq = function(a, b) return a[1] == b[1] end,
    __lt = is_smaller,
    __le = function(a, b) return not is_smaller(b, a) end,
}
for _, name in next, { "add", "sub", "mul", "div", "mod", "pow", "unm" } do
    INTEGER["__" .. name] = refuse_arithmetic
end

-- Goes on reading the tape at `at`. `container` is the innermost one that is not full: `left` is how much is
-- to come, `place` how much has come to an array (of an object: -1), `names` the list to which an object's names are
-- added, if they are not known. Those around it lie in `stack`, four entries each. A call at the end instead of a loop:
-- LuaJIT compiles a large loop that most often runs but few times badly, and a function that calls itself in its
-- middle not at all. `shapes` has the lists of names so far; without it, order is not kept and integers are rounded.
local function read_on(at, container, left, place, names, stack, depth, null, array_mark, object_mark, shapes)
    if left == 0 then
        if depth == 0 then
            return container
        end
        return read_on(at, stack[depth - 3], stack[depth - 2], stack[depth - 1], stack[depth], stack, depth - 4,
            null, array_mark, object_mark, shapes)
    end
    local item = call.tape[at]
    local name
    if place == -1 then
        name = text(item.data, item.length)
        at = at + 1
        item = call.tape[at]
        if names and rawget(container, name) == nil then
            names[#names + 1] = name
        end
    end
    local kind = item.kind
    local value, count, new_names = null, 0, nil
    if kind == 4 then
        value = text(item.data, item.length)
    elseif kind == 3 then
        value = item.number
    elseif kind == 6 then
        value, count = {}, item.length
        if object_mark then
            setmetatable(value, object_mark)
        elseif count > 0 then
            local shape = shapes[item.number]
            if not shape then
                -- With room for some names from the beginning.
                shape = { [0] = SHAPE, nil, nil, nil, nil, nil, nil, nil, nil }
                shapes[item.number] = shape
                new_names = shape
            end
            setmetatable(value, shape)
        end
    elseif kind == 5 then
        value, count = setmetatable({}, array_mark), item.length
    elseif kind == 2 then
        value = true
    elseif kind == 1 then
        value = false
    elseif kind == 7 then
        value = item.number
        if shapes then
            value = setmetatable({ text(item.data, item.length) }, INTEGER)
        end
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
            return read_on(at + 1, container, left, place, names, stack, depth, null, array_mark, object_mark, shapes)
        end
        stack = stack or {}
        stack[depth + 1], stack[depth + 2], stack[depth + 3], stack[depth + 4] = container, left, place, names or false
        depth = depth + 4
    end
    return read_on(at + 1, value, count, kind == 6 and -1 or 0, new_names, stack, depth,
        null, array_mark, object_mark, shapes)
end

-- Makes the value that is on the tape.
local function read(null, array_mark, object_mark, shapes)
    return (read_on(0, nil, 1, 0, nil, nil, 0, null, array_mark, object_mark, shapes))
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
    return (read(NULL, ARRAY, nil, {}))
end

-- For configurations: null is nil, and nothing can be added.
function json.decode_frozen(document)
    local answer = host_parse(call, document, #document)
    if answer == 0 then
        error("not JSON: " .. text(call.data, call.length))
    elseif answer ~= 1 then
        refuse_document(answer, 2)
    end
    return (read(nil, FROZEN_ARRAY, FROZEN, nil))
end

-- Keywords of JSON Schema whose empty value is an array.
local SCHEMA_ARRAYS = {
    required = true, enum = true, allOf = true, anyOf = true, oneOf = true, prefixItems = true,
    examples = true,
}

local write_on

-- Sorts few texts in a form that LuaJIT compiles, as it does not `table.sort`.
local function sort_names(names, from)
    for i = from + 1, #names do
        local name, at = names[i], i
        while at > from and name < names[at - 1] do
            names[at] = names[at - 1]
            at = at - 1
        end
        names[at] = name
    end
end

local function as_text(a, b)
    return tostring(a) < tostring(b)
end

-- The names of an object's members, `count` in all, in the order in which they are written: those of its shape, then the
-- others, sorted. Of a shape there may be some without a value.
local function names_of(value, count, shape)
    local names, known = {}, nil
    if shape then
        local present = 0
        for i = 1, #shape do
            if rawget(value, shape[i]) ~= nil then
                present = present + 1
            end
        end
        if present == count then
            return shape
        end
        known = {}
        for i = 1, #shape do
            local name = shape[i]
            if rawget(value, name) ~= nil then
                names[#names + 1] = name
                known[name] = true
            end
        end
    end
    local from, others = #names + 1, false
    for name in next, value do
        if not (known and known[name]) then
            names[#names + 1] = name
            others = others or type(name) ~= "string"
        end
    end
    if others then
        sort(names, as_text)
    elseif #names - from < 16 then
        sort_names(names, from)
    else
        -- Those of the shape stay where they are.
        local rest = {}
        for i = from, #names do
            rest[i - from + 1] = names[i]
        end
        sort(rest)
        for i = from, #names do
            names[i] = rest[i - from + 1]
        end
    end
    return names
end

-- Writes a value. Tables that are not complete yet lie in `stack`, four entries each: the table, how many
-- values an array has (of an object: -1 before its first member, -2 behind it), the last place, and an object's names.
-- Answers nil and why where JSON has nothing for the value. It goes on by a call at the end, as `read_on` does.
local function write(value, key, schema, stack, depth)
    local kind = type(value)
    local answer
    if kind == "string" then
        answer = host_string(call, value, #value)
    elseif kind == "number" then
        if value ~= value or value == huge or value == -huge then
            return nil, "JSON has no number for " .. tostring(value)
        end
        answer = host_number(call, value)
    elseif kind == "boolean" then
        answer = value and host_raw(call, "true", 4) or host_raw(call, "false", 5)
    elseif kind == "nil" or value == NULL then
        answer = host_raw(call, "null", 4)
    elseif kind == "table" then
        local mark = debug_getmetatable(value)
        if mark == INTEGER then
            local digits = value[1]
            if type(digits) ~= "string" or not is_integer(digits) then
                return nil, "an integer was changed"
            end
            answer = host_raw(call, digits, #digits)
            if answer ~= 0 then
                return nil, "not enough memory"
            end
            return write_on(schema, stack, depth)
        end
        if depth == 4 * MAX_DEPTH then
            return nil, "the value is nested more than " .. MAX_DEPTH .. " deep, or contains itself"
        end
        stack = stack or {}
        local count, length = 0, rawlen(value)
        for _ in next, value do
            count = count + 1
        end
        stack[depth + 1], stack[depth + 3] = value, 0
        if mark == ARRAY or mark == FROZEN_ARRAY or (count > 0 and count == length)
            or (count == 0 and schema and SCHEMA_ARRAYS[key]) then
            stack[depth + 2], stack[depth + 4] = length, false
            answer = host_raw(call, "[", 1)
        else
            local shape = mark and type(mark) == "table" and rawget(mark, 0) == SHAPE and mark
            stack[depth + 2], stack[depth + 4] = -1, names_of(value, count, shape)
            answer = host_raw(call, "{", 1)
        end
        depth = depth + 4
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
    local list, size, place, names = stack[depth - 3], stack[depth - 2], stack[depth - 1], stack[depth]
    if size < 0 then
        local name, value
        repeat
            place = place + 1
            name = names[place]
            value = name ~= nil and rawget(list, name)
        until name == nil or value ~= nil
        if name ~= nil then
            if size == -2 then
                host_raw(call, ",", 1)
            end
            stack[depth - 2], stack[depth - 1] = -2, place
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
        stack[depth - 1] = place + 1
        return write(list[place + 1], nil, schema, stack, depth)
    else
        host_raw(call, "]", 1)
    end
    return write_on(schema, stack, depth - 4)
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
    return (read(NULL, ARRAY, nil, {}))
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
        integer = function(digits)
            if type(digits) ~= "string" then
                expect(digits, "string", "the digits")
            end
            if not is_integer(digits) then
                error("the digits of an integer are expected, without zeros before them: " .. digits, 2)
            end
            return setmetatable({ digits }, INTEGER)
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
