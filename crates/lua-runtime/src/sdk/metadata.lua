-- Metadata, filter state, and the choice of the upstream's endpoint.
local core, envoy, json = ...
local call, host, text = core.call, core.host, core.text
local fail, expect, to_text = core.fail, core.expect, core.to_text
local encode_json, read_tape = core.encode_json, core.read_tape
local type, error = type, error
local decode_json = json.decode
local host_metadata, host_set_metadata = host.metadata, host.set_metadata
local host_metadata_list, host_metadata_names = host.metadata_list, host.metadata_names
local host_set_metadata_json = host.set_metadata_json
local host_filter_state, host_set_filter_state = host.filter_state, host.set_filter_state
local host_override_host = host.override_host

local function read_metadata(source, key, namespace)
    local answer = host_metadata(call, source, namespace, #namespace, key, #key)
    if answer < 0 then
        fail(answer, 2)
    end
    if answer == 1 then
        return text(call.data, call.length)
    elseif answer == 2 then
        return call.number
    elseif answer == 3 then
        return call.number ~= 0
    end
    return nil
end

local function metadata_reader(source)
    return function(key, filter_name)
        if type(key) ~= "string" then
            expect(key, "string", "the metadata's key")
        end
        if type(filter_name) ~= "string" then
            expect(filter_name, "string", "the filter's name")
        end
        local value = read_metadata(source, key, filter_name)
        if value == nil then
            -- Rider's documents drop this prefix.
            value = read_metadata(source, key, "com.netease." .. filter_name)
        end
        return value
    end
end

envoy.req.get_metadata = metadata_reader(0)
envoy.req.get_dynamic_metadata = metadata_reader(1)
envoy.resp.get_metadata = envoy.req.get_metadata
envoy.resp.get_dynamic_metadata = envoy.req.get_dynamic_metadata

-- Writes a value of any kind; the plugin is behind the function that asks.
local function write_metadata(namespace, key, value)
    local kind = type(value)
    local answer
    if kind == "string" then
        answer = host_set_metadata(call, namespace, #namespace, key, #key, 1, value, #value, 0)
    elseif kind == "number" then
        answer = host_set_metadata(call, namespace, #namespace, key, #key, 2, "", 0, value)
    elseif kind == "boolean" then
        answer = host_set_metadata(call, namespace, #namespace, key, #key, 3, "", 0, value and 1 or 0)
    elseif kind == "table" then
        local document, problem = encode_json(value)
        if not document then
            error("metadata cannot hold this value: " .. problem, 3)
        end
        answer = host_set_metadata_json(call, namespace, #namespace, key, #key, document, #document)
    else
        error("a metadata value must be a string, a number, a boolean or a table, not " .. kind, 3)
    end
    if answer == -4 then
        error(text(call.data, call.length), 3)
    elseif answer < 0 then
        fail(answer, 2)
    end
end

function envoy.req.set_dynamic_metadata(key, value, filter_name)
    if type(key) ~= "string" then
        expect(key, "string", "the metadata's key")
    end
    if type(filter_name) ~= "string" then
        expect(filter_name, "string", "the filter's name")
    end
    write_metadata(filter_name, key, value)
end
envoy.resp.set_dynamic_metadata = envoy.req.set_dynamic_metadata

-- All kinds of metadata, by namespace and key.
local SOURCES = { route = 0, dynamic = 1, cluster = 2, host = 3, locality = 4 }

local function source_number(source)
    local number = SOURCES[source == nil and "dynamic" or source]
    if not number then
        error('the source of metadata is "dynamic", "route", "cluster", "host" or "locality"', 3)
    end
    return number
end

-- Envoy shows modules no nested values of metadata. Its filter `set_filter_state`, before this one, can write a copy of a
-- namespace of dynamic metadata as JSON, which modules see. Plugins may not write keys that begin with `outrider.`.
local COPY = "outrider.dynamic_metadata."

local function copy_of(namespace)
    local key = COPY .. namespace
    if host_filter_state(call, key, #key) ~= 1 then
        return nil
    end
    local copy = decode_json(text(call.data, call.length))
    return type(copy) == "table" and copy or nil
end

envoy.metadata = {}

function envoy.metadata.get(namespace, key, source)
    if type(namespace) ~= "string" then
        expect(namespace, "string", "the namespace")
    end
    if type(key) ~= "string" then
        expect(key, "string", "the metadata's key")
    end
    local number = source_number(source)
    local value = read_metadata(number, key, namespace)
    if value == nil then
        if host_metadata_list(call, number, namespace, #namespace, key, #key) == 1 then
            return read_tape()
        elseif number == 1 then
            local copy = copy_of(namespace)
            return copy and copy[key]
        end
    end
    return value
end

function envoy.metadata.set(namespace, key, value)
    if type(namespace) ~= "string" then
        expect(namespace, "string", "the namespace")
    end
    if type(key) ~= "string" then
        expect(key, "string", "the metadata's key")
    end
    write_metadata(namespace, key, value)
end

function envoy.metadata.keys(namespace, source)
    if type(namespace) ~= "string" then
        expect(namespace, "string", "the namespace")
    end
    local answer = host_metadata_names(call, source_number(source), 1, namespace, #namespace)
    if answer < 0 then
        fail(answer)
    end
    return read_tape()
end

function envoy.metadata.namespaces(source)
    local answer = host_metadata_names(call, source_number(source), 0, "", 0)
    if answer < 0 then
        fail(answer)
    end
    return read_tape()
end

-- Filter state.
envoy.filter_state = {}

function envoy.filter_state.get(key)
    if type(key) ~= "string" then
        expect(key, "string", "the key")
    end
    local answer = host_filter_state(call, key, #key)
    if answer == 1 then
        return text(call.data, call.length)
    elseif answer < 0 then
        fail(answer)
    end
    return nil
end

local function set_filter_state(typed, key, value)
    if type(key) ~= "string" then
        expect(key, "string", "the key", 4)
    end
    if type(value) ~= "string" then
        value = to_text(value, "the value", 4)
    end
    local answer = host_set_filter_state(call, typed, key, #key, value, #value)
    if answer == -4 then
        error("filter state " .. key .. " " .. text(call.data, call.length), 3)
    elseif answer < 0 then
        fail(answer, 2)
    end
end

function envoy.filter_state.set(key, value)
    set_filter_state(0, key, value)
end

function envoy.filter_state.set_typed(key, value)
    set_filter_state(1, key, value)
end

function envoy.req.set_upstream_override_host(address, strict)
    if type(address) ~= "string" then
        expect(address, "string", "the address")
    end
    if strict ~= nil and type(strict) ~= "boolean" then
        expect(strict, "boolean", "whether it is strict")
    end
    local answer = host_override_host(call, address, #address, strict and 1 or 0)
    if answer == -4 then
        error(text(call.data, call.length), 2)
    elseif answer < 0 then
        fail(answer)
    end
end
