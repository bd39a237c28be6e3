-- Scripts for Envoy's own Lua filter: what `envoy_on_request(handle)` and `envoy_on_response(handle)` are
-- given. Names, arguments and results are Envoy's; docs/envoy-lua.md lists every function and every
-- difference, and is written by the tests that run the same script in both.
--
-- A handle and all that it gives out are made once for a VM, and stand for the stream that is being
-- served: nothing is made in a call, so that traces hold them as constants. The trap: `call.phase` is what
-- says whether the headers have gone on. A script that waited for chunks or trailers goes on in the phase
-- of what woke it, so there is no flag for that.
local core, wait, envoy, metric = ...
local call, host, text = core.call, core.host, core.text
local fail = core.fail
local type, error, pairs, tonumber, tostring, setmetatable = type, error, pairs, tonumber, tostring, setmetatable
local rawget, find, format = rawget, string.find, string.format
local suspendable, suspend = wait.suspendable, wait.suspend
local host_header, host_header_count, host_headers = host.header, host.header_count, host.headers
local host_set, host_add, host_remove = host.set_header, host.add_header, host.remove_header
local host_clear_route_cache = host.clear_route_cache
local host_body_length, host_body, host_set_body = host.body_length, host.body, host.set_body
local host_wait_body, host_wait_chunk, host_wait_trailers = host.wait_body, host.wait_chunk, host.wait_trailers
local host_log, host_log_enabled = host.log, host.log_enabled

local filter = {
    -- Objects that `pairs` goes through, with how.
    iterators = setmetatable({}, { __mode = "k" }),
}

-- The headers phases; a direction's body and trailers have the two numbers that follow.
local REQUEST_HEADERS, RESPONSE_HEADERS = 0, 3

-- Raises about an argument, at the plugin's line; `level` is as `error` counts it from here.
function filter.refuse(number, name, wanted, value, level)
    error(format("bad argument #%d to '%s' (%s expected, got %s)", number, name, wanted,
        value == nil and "no value" or type(value)), level or 3)
end
local refuse = filter.refuse

-- A text from what Lua's C interface takes for one: a text or a number.
function filter.to_string(value, number, name, level)
    if type(value) == "number" then
        return tostring(value)
    end
    refuse(number, name, "string", value, (level or 3) + 1)
end
local to_string = filter.to_string

-- Log functions, which every object of Envoy's has.
local LEVELS = { logTrace = 0, logDebug = 1, logInfo = 2, logWarn = 3, logErr = 4, logCritical = 4 }
local logs = {}
for name, level in pairs(LEVELS) do
    logs[name] = function(_, message)
        if type(message) ~= "string" then
            message = to_string(message, 1, name)
        end
        if host_log_enabled(call, level) == 1 then
            host_log(call, level, message, #message)
        end
    end
end

-- Every object that was made.
local objects = setmetatable({}, { __mode = "k" })

local function takes_no_members()
    error("objects of Envoy's Lua filter take no members", 2)
end

-- What objects have in common of which there are several; `filter.instance` makes them in calls.
function filter.class(methods, index)
    for name, log in pairs(logs) do
        methods[name] = log
    end
    return { __index = index or methods, __newindex = takes_no_members, __metatable = "envoy" }
end

function filter.instance(class)
    local made = setmetatable({}, class)
    objects[made] = true
    return made
end

-- An object with these methods, and the log functions. `iterate` is what `pairs` does, `index` finds
-- members instead of the methods alone.
function filter.object(methods, iterate, index)
    local made = filter.instance(filter.class(methods, index))
    filter.iterators[made] = iterate
    return made
end

function filter.is_object(value)
    return value ~= nil and objects[value] == true
end
local object = filter.object

-- Says once for a VM that something is never there.
local told = {}
function filter.never(what)
    if not told[what] then
        told[what] = true
        envoy.logWarn(what .. " is always empty: Envoy does not show it to modules")
    end
end

-- Goes through names and values that were taken down before; what is changed meanwhile does not show.
function filter.each(state)
    local at = state.at + 1
    state.at = at
    return state.names[at], state.values[at]
end
local each = filter.each

-- The headers, or trailers, of one map. `phase` is the one in which they can be changed; nil: any.
local function header_object(map, phase)
    local Headers = {}

    -- All values, joined as Envoy does.
    local function joined(name, value, count)
        for index = 1, count - 1 do
            if host_header(call, map, name, #name, index) == 1 then
                value = value .. "," .. text(call.data, call.length)
            end
        end
        return value
    end

    function Headers.get(_, name)
        if type(name) ~= "string" then
            name = to_string(name, 1, "get")
        end
        local answer = host_header(call, map, name, #name, 0)
        if answer < 0 then
            fail(answer)
        elseif answer == 0 then
            return nil
        end
        local value = text(call.data, call.length)
        local count = host_header_count(call, map, name, #name)
        if count > 1 then
            return joined(name, value, count)
        end
        return value
    end

    function Headers.getAtIndex(_, name, index)
        if type(name) ~= "string" then
            name = to_string(name, 1, "getAtIndex")
        end
        if type(index) ~= "number" then
            index = tonumber(index) or refuse(2, "getAtIndex", "number", index)
        end
        local answer = host_header(call, map, name, #name, index)
        if answer == 1 then
            return text(call.data, call.length)
        elseif answer < 0 then
            fail(answer)
        end
        return nil
    end

    function Headers.getNumValues(_, name)
        if type(name) ~= "string" then
            name = to_string(name, 1, "getNumValues")
        end
        local answer = host_header_count(call, map, name, #name)
        if answer < 0 then
            fail(answer)
        end
        return answer
    end

    local function check(answer)
        if answer < 0 then
            fail(answer, 2)
        elseif answer == 0 then
            error("header map can no longer be modified", 3)
        end
        -- Envoy's filter has the route chosen anew after each change of the request's headers.
        if map == 0 then
            host_clear_route_cache(call)
        end
    end

    function Headers.add(_, name, value)
        if phase and call.phase ~= phase then
            error("header map can no longer be modified", 2)
        end
        if type(name) ~= "string" then
            name = to_string(name, 1, "add")
        end
        if type(value) ~= "string" then
            value = to_string(value, 2, "add")
        end
        check(host_add(call, map, name, #name, value, #value))
    end

    function Headers.replace(_, name, value)
        if phase and call.phase ~= phase then
            error("header map can no longer be modified", 2)
        end
        if type(name) ~= "string" then
            name = to_string(name, 1, "replace")
        end
        if type(value) ~= "string" then
            value = to_string(value, 2, "replace")
        end
        check(host_set(call, map, name, #name, value, #value))
    end

    function Headers.remove(_, name)
        if phase and call.phase ~= phase then
            error("header map can no longer be modified", 2)
        end
        if type(name) ~= "string" then
            name = to_string(name, 1, "remove")
        end
        check(host_remove(call, map, name, #name))
    end

    -- Modules of Envoy cannot set it. Nothing hangs on it either, so the script goes on.
    local warned
    function Headers.setHttp1ReasonPhrase(_, phrase)
        if type(phrase) ~= "string" then
            to_string(phrase, 1, "setHttp1ReasonPhrase")
        end
        if not warned then
            warned = true
            envoy.logWarn("setHttp1ReasonPhrase has no effect: Envoy does not let modules set it")
        end
    end

    return object(Headers, function()
        local count = host_headers(call, map)
        if count < 0 then
            fail(count, 2)
        end
        local names, values, list = {}, {}, call.pairs
        for index = 1, count do
            local entry = list[index - 1]
            names[index] = text(entry.name, entry.name_length)
            values[index] = text(entry.value, entry.value_length)
        end
        return each, { names = names, values = values, at = 0 }
    end)
end

-- The body, or the chunk, of one direction.
local function buffer_object(direction, headers_map, headers_phase)
    local Buffer = {}

    local function present(level)
        local length = host_body_length(call, direction)
        if length < -1 then
            fail(length, level)
        end
        return length
    end

    local function gone()
        error("the body is not here any more: ask for it again after what the script waited for", 3)
    end

    -- A message without a body has one of no bytes; without headers to wait, it has gone on.
    function Buffer.length()
        local length = present(2)
        if length < 0 then
            return call.phase == headers_phase and 0 or gone()
        end
        return length
    end

    function Buffer.getBytes(_, index, length)
        if type(index) ~= "number" then
            refuse(1, "getBytes", "number", index)
        elseif type(length) ~= "number" then
            refuse(2, "getBytes", "number", length)
        end
        local whole = present(2)
        if whole < 0 then
            if call.phase ~= headers_phase then
                gone()
            end
            whole = 0
        end
        if not (index >= 0 and length >= 0 and index + length <= whole) then
            error("index/length must be >= 0 and (index + length) must be <= buffer size", 2)
        end
        if length == 0 or host_body(call, direction) ~= 1 then
            return ""
        end
        return text(call.data + index, length)
    end

    function Buffer.setBytes(_, bytes)
        if type(bytes) ~= "string" then
            bytes = to_string(bytes, 1, "setBytes")
        end
        local answer = host_set_body(call, direction, bytes, #bytes)
        if answer == 0 or answer == -4 then
            error(text(call.data, call.length), 2)
        elseif answer < 0 then
            fail(answer)
        end
        if call.phase == headers_phase then
            local length = tostring(#bytes)
            host_set(call, headers_map, "content-length", 14, length, #length)
        end
        return #bytes
    end

    return object(Buffer)
end

local request_headers = header_object(0, REQUEST_HEADERS)
-- What a response's handler is given: it has no say any more, but Envoy lets it write.
local request_headers_later = header_object(0, nil)

-- The part of a handle that differs by direction.
local function handle_methods(direction)
    local phase = direction == 0 and REQUEST_HEADERS or RESPONSE_HEADERS
    local headers = direction == 0 and request_headers or header_object(1, RESPONSE_HEADERS)
    local trailers_map = direction + 2
    local trailers = header_object(trailers_map, nil)
    local body = buffer_object(direction, direction, phase)
    local Handle = {}

    function Handle.headers()
        return headers
    end

    function Handle.requestHeaders()
        return direction == 0 and request_headers or request_headers_later
    end

    function Handle.body(_, always_wrap)
        if always_wrap ~= nil and type(always_wrap) ~= "boolean" then
            refuse(1, "body", "boolean", always_wrap)
        end
        local length = host_body_length(call, direction)
        if length < -1 then
            fail(length)
        end
        if call.phase ~= phase then
            error(call.end_of_stream == 1 and "cannot call body() after body has been streamed"
                or "cannot call body() after body streaming has started", 2)
        end
        if length < 0 and call.end_of_stream == 0 then
            suspendable("body()")
            host_wait_body(call)
            suspend("body()")
            length = host_body_length(call, direction)
        end
        if length < 0 and not always_wrap then
            return nil
        end
        return body
    end

    local function streaming(what)
        if not filter.streams then
            error(what .. " is called, but no file of the plugin names it: write it as "
                .. "handle:" .. what, 3)
        end
        suspendable(what, 4)
    end

    local function next_chunk()
        if call.end_of_stream == 1 then
            return nil
        end
        streaming("bodyChunks()")
        host_wait_chunk(call)
        suspend("bodyChunks()")
        -- Trailers end a body, too.
        if call.phase == phase + 2 then
            return nil
        end
        return body
    end

    function Handle.bodyChunks()
        if call.phase ~= phase or host_body_length(call, direction) >= 0 then
            error("cannot call bodyChunks after body processing has begun", 2)
        end
        return next_chunk
    end

    function Handle.trailers()
        local count = host_headers(call, trailers_map)
        if count < 0 then
            fail(count)
        end
        if count == 0 and call.end_of_stream == 0 then
            streaming("trailers()")
            host_wait_trailers(call)
            suspend("trailers()")
            count = host_headers(call, trailers_map)
        end
        if count > 0 then
            return trailers
        end
        return nil
    end

    return Handle
end

-- The two handles, with the methods of these parts; the last part has those of each direction.
function filter.complete(facts, tools, calls)
    local function handle(direction)
        local methods = handle_methods(direction)
        for _, part in pairs({ facts, tools, calls[direction] }) do
            for name, method in pairs(part) do
                methods[name] = method
            end
        end
        return object(methods)
    end
    filter.request, filter.response = handle(0), handle(1)
end

-- Envoy's objects are gone through with `pairs`.
local function pairs_of_all(value)
    local iterate = value ~= nil and filter.iterators[value]
    if iterate then
        return iterate()
    end
    return pairs(value)
end

-- A file of such a plugin, before any of them runs: what Envoy's scripts find in their globals and other
-- plugins do not, and what has to be known of the text.
function filter.note(source, globals)
    globals.pairs = pairs_of_all
    globals.EnvoyTimestampResolution = { MILLISECOND = 0, MICROSECOND = 1 }
    metric.define_scoped(source)
    if find(source, "bodyChunks", 1, true) or find(source, "trailers", 1, true) then
        filter.streams = true
    end
end

-- The handlers of a script whose file returned nothing, in the places of the phases, and the functions
-- that they call; nil: it is no such script.
function filter.handlers(globals)
    local on_request = rawget(globals, "envoy_on_request")
    local on_response = rawget(globals, "envoy_on_response")
    if on_request == nil and on_response == nil then
        return nil
    end
    for name, value in pairs({ envoy_on_request = on_request, envoy_on_response = on_response }) do
        if type(value) ~= "function" then
            error(name .. " must be a function, not a " .. type(value), 0)
        end
    end
    local found, places = {}, {}
    if on_request then
        local handle = filter.request
        found[1], places[1] = function() return on_request(handle) end, on_request
    end
    if on_response then
        local handle = filter.response
        found[4], places[4] = function() return on_response(handle) end, on_response
    end
    return found, places
end

return filter
