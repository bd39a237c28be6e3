-- JSON Schemas. The host compiles one once and keeps it by its number; one that made room for others is
-- compiled anew here.
local core, envoy = ...
local call, host, text = core.call, core.host, core.text
local expect, fail = core.expect, core.fail
local encode_schema = core.encode_schema
local type, error, setmetatable = type, error, setmetatable
local host_compile, host_validate = host.schema_compile, host.schema_validate

-- Text and number of each schema, out of the plugin's reach.
local texts = setmetatable({}, { __mode = "k" })
local numbers = setmetatable({}, { __mode = "k" })

local Schema = {}
Schema.__index = Schema
Schema.__metatable = false

local function compile(document, level)
    local number = host_compile(call, document, #document)
    if number == -4 then
        error(text(call.data, call.length), level + 1)
    elseif number < 0 then
        fail(number, level)
    end
    return number
end

function Schema:validate(document)
    local number = numbers[self]
    if number == nil then
        error("validate is a method of a schema: write schema:validate(text)", 2)
    elseif type(document) ~= "string" then
        expect(document, "string", "the document")
    end
    local answer = host_validate(call, number, document, #document)
    if answer == -7 then
        number = compile(texts[self], 2)
        numbers[self] = number
        answer = host_validate(call, number, document, #document)
    end
    if answer == 0 then
        return true
    elseif answer == -5 then
        -- The watchdog ends the call; this says so should the plugin catch it before.
        error("the time budget of the call is used up", 2)
    elseif answer < 0 then
        fail(answer)
    end
    local messages = {}
    local list = call.pairs
    for i = 0, answer - 1 do
        messages[i + 1] = text(list[i].value, list[i].value_length)
    end
    return false, messages
end

envoy.json_schema = {
    compile = function(schema)
        local document = schema
        if type(schema) == "table" then
            local problem
            document, problem = encode_schema(schema)
            if not document then
                error("the schema: " .. problem, 2)
            end
        elseif type(schema) ~= "string" then
            expect(schema, "table or a string of JSON", "the schema")
        end
        local number = compile(document, 2)
        local object = setmetatable({}, Schema)
        texts[object] = document
        numbers[object] = number
        return object
    end,
}
