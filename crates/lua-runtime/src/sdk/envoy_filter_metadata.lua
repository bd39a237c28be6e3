-- Metadata and the configuration, as handles of Envoy's Lua filter show them.
--
-- The trap: Envoy takes nested values from modules, but shows them none. What this plugin has written on a
-- stream is kept here, so that a script finds it again; what others wrote nested stays hidden.
local core, filter, envoy = ...
local call, host = core.call, core.host
local fail = core.fail
local type, error, pairs, next = type, error, core.pairs, next
local object, to_string, each, never = filter.object, filter.to_string, filter.each, filter.never
local get_metadata, set_metadata = envoy.metadata.get, envoy.metadata.set
local metadata_keys, metadata_namespaces = envoy.metadata.keys, envoy.metadata.namespaces
local config, json_null, log_warning = envoy.config, envoy.json.null, envoy.logWarn
local host_index = host.stream_index

-- Tables written to dynamic metadata, by stream, filter and key: Envoy takes them from modules, but
-- shows them only what is not nested.
local written = {}

function filter.close(index)
    written[index] = nil
end

local function copy(value)
    if type(value) ~= "table" then
        return value
    end
    local made = {}
    for name, member in pairs(value) do
        made[name] = copy(member)
    end
    return made
end

local function tables_of(namespace, make)
    local index = host_index(call)
    if index < 0 then
        fail(index, 3)
    end
    local own = written[index]
    if not own then
        if not make then
            return nil
        end
        own = {}
        written[index] = own
    end
    if not own[namespace] and make then
        own[namespace] = {}
    end
    return own[namespace]
end

-- A value of the copy that `envoy.metadata.get` reads: a null is nil here.
local function without_nulls(value)
    if type(value) ~= "table" then
        return value
    end
    local made = {}
    for name, member in next, value do
        if member ~= json_null then
            made[name] = without_nulls(member)
        end
    end
    return made
end

-- Says once for a VM, of each key, that its value is hidden.
local told, tellings = {}, 0
local function hidden(namespace, key)
    local name = namespace .. "." .. key
    if told[name] or tellings >= 100 then
        return
    end
    told[name], tellings = true, tellings + 1
    log_warning("the dynamic metadata " .. name .. " is nil here: it is nested, and Envoy does not show nested values "
        .. "to modules. Have a filter before this one copy it: see \"Nested metadata\" in docs/envoy-lua.md")
end

local function dynamic_table(namespace)
    local keys = metadata_keys(namespace)
    if #keys == 0 then
        return nil
    end
    local tables = next(written) and tables_of(namespace)
    local made = {}
    for index = 1, #keys do
        local key = keys[index]
        local value = get_metadata(namespace, key)
        local own = tables and tables[key]
        if own ~= nil and (value == nil or type(value) == "table") then
            value = own ~= json_null and copy(own) or nil
        elseif type(value) == "table" then
            value = without_nulls(value)
        elseif value == nil then
            hidden(namespace, key)
        end
        made[key] = value
    end
    return made
end

local Dynamic = {}

function Dynamic.get(_, name)
    if type(name) ~= "string" then
        name = to_string(name, 1, "get")
    end
    return dynamic_table(name)
end

local function check_value(value, level)
    local kind = type(value)
    if kind == "table" then
        for name, member in pairs(value) do
            if type(name) ~= "string" and type(name) ~= "number" then
                error("unexpected type " .. type(name) .. " in table key (only string keys are "
                    .. "supported)", level)
            end
            check_value(member, level + 1)
        end
    elseif kind ~= "string" and kind ~= "number" and kind ~= "boolean" and kind ~= "nil" then
        error("unexpected type '" .. kind .. "' in dynamicMetadata", level)
    end
end

function Dynamic.set(_, name, key, value)
    if type(name) ~= "string" then
        name = to_string(name, 1, "set")
    end
    if type(key) ~= "string" then
        key = to_string(key, 2, "set")
    end
    local kind = type(value)
    if kind == "string" or kind == "number" or kind == "boolean" then
        set_metadata(name, key, value)
        if next(written) then
            local tables = tables_of(name)
            if tables then
                tables[key] = nil
            end
        end
        return
    end
    check_value(value, 3)
    set_metadata(name, key, value == nil and json_null or value)
    tables_of(name, true)[key] = value == nil and json_null or copy(value)
end

local dynamic_metadata = object(Dynamic, function()
    local names = metadata_namespaces()
    local values = {}
    for index = 1, #names do
        values[index] = dynamic_table(names[index])
    end
    return each, { names = names, values = values, at = 0 }
end)

-- Metadata of one source, for Envoy's Lua filter.
local NAMESPACE = "envoy.filters.http.lua"

local Route = {}

function Route.get(_, key)
    if type(key) ~= "string" then
        key = to_string(key, 1, "get")
    end
    return get_metadata(NAMESPACE, key, "route")
end

local route_metadata = object(Route, function()
    local names = metadata_keys(NAMESPACE, "route")
    local values = {}
    for index = 1, #names do
        values[index] = get_metadata(NAMESPACE, names[index], "route")
    end
    return each, { names = names, values = values, at = 0 }
end)

-- Metadata that is never there.
local function nothing(what)
    return object({
        get = function()
            never(what)
            return nil
        end,
    }, function()
        never(what)
        return each, { names = {}, values = {}, at = 0 }
    end)
end

-- The configuration: by Envoy's `get`, and by name.
local Context = {}

function Context.get(_, key)
    if type(key) ~= "string" then
        key = to_string(key, 1, "get")
    end
    return config()[key]
end

local context = object(Context, function()
    return pairs(config())
end, function(_, key)
    local method = Context[key]
    if method ~= nil then
        return method
    end
    return config()[key]
end)

return {
    dynamic = dynamic_metadata,
    route = route_metadata,
    virtual_host = nothing("virtualHost():metadata()"),
    connection = nothing("connectionStreamInfo():dynamicMetadata()"),
    context = context,
}
