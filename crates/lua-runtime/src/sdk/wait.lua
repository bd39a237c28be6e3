-- What suspends or ends a handler: waiting for events or a body, replies; and the plain httpCall.
--
-- A handler runs in a coroutine of the host's. It can be suspended only from there: not from a
-- coroutine that the plugin made, and not outside of a handler. A reply also leaves by a yield, which
-- no `pcall` catches; the host never goes on with that coroutine.
local core = ...
local call, host, text = core.call, core.host, core.text
local fail, expect, to_text = core.fail, core.expect, core.to_text
local type, error, tonumber, setmetatable, floor = type, error, tonumber, setmetatable, math.floor
local pairs, pcall = core.pairs, pcall
local running, yield = coroutine.running, coroutine.yield
local host_callout, host_timer, host_outcome = host.callout, host.timer, host.outcome
local host_reply, host_wait_body, host_wait_for = host.reply, host.wait_body, host.wait_for
local host_index = host.stream_index
local LOG_PHASE, BACKGROUND = core.LOG_PHASE, core.BACKGROUND
-- Kinds of what can be waited for, as waiting.rs numbers them.
local CALLOUT, TIMER = 1, 2

local wait = {
    -- Coroutines that the plugin made; the sandbox adds them.
    own = setmetatable({}, { __mode = "k" }),
}
local own = wait.own

-- Raises where there is no stream, or none that goes on.
local function needs_stream(what, level)
    local phase = call.phase
    if phase < 0 then
        error(what .. " needs a stream: call it from a handler, not while the plugin loads or from "
            .. "on_configure", (level or 2) + 1)
    elseif phase == LOG_PHASE then
        error(what .. " cannot be called from on_log: the stream is over", (level or 2) + 1)
    end
end

-- Raises unless the handler can be suspended here.
local function suspendable(what, level)
    needs_stream(what, level or 3)
    local thread = running()
    if thread == nil or own[thread] then
        error(what .. " cannot be called from a coroutine of the plugin's own", level or 3)
    end
end

-- Suspends the handler until the host goes on with it.
local function suspend(what, level)
    if not pcall(yield) then
        error(what .. " cannot wait here: a function that is written in C stands in between, such as "
            .. "string.gsub or table.sort", level or 3)
    end
end

-- What tells living streams apart, by the number of their entry; and to which of them a handle belongs, out of the
-- plugin's sight.
local streams = {}
local owners = setmetatable({}, { __mode = "k" })

-- The stream that is being served.
local function current(level)
    local index = host_index(call)
    if index < 0 then
        fail(index, level)
    end
    local one = streams[index]
    if one == nil then
        one = {}
        streams[index] = one
    end
    return one
end

-- Notes that a handle belongs to the stream that is being served. Answers the handle.
function wait.own_handle(handle, level)
    owners[handle] = current(level + 1)
    return handle
end

-- Raises where a handle is used that is not of the stream that is being served.
function wait.check_owner(handle, what, level)
    if call.phase < 0 or owners[handle] ~= current(level + 1) then
        error(what .. ": it belongs to another stream, or its stream is over", level)
    end
end

-- The stream has ended.
function wait.close(index)
    streams[index] = nil
end

wait.needs_stream, wait.suspendable, wait.suspend = needs_stream, suspendable, suspend
wait.CALLOUT, wait.TIMER, wait.HTTP_STREAM = CALLOUT, TIMER, 3

function wait.body(what)
    -- The plugin is behind the function that asks, and the one that completes.
    suspendable(what, 5)
    if call.phase == BACKGROUND then
        error("a timer's function cannot wait for " .. what, 4)
    end
    host_wait_body(call)
    suspend(what, 5)
end

local function http_call(cluster, headers, body, timeout)
    suspendable("envoy.httpCall")
    if type(cluster) ~= "string" then
        expect(cluster, "string", "the cluster")
    end
    if type(headers) ~= "table" then
        expect(headers, "table", "the headers")
    end
    if type(timeout) ~= "number" or not (timeout > 0) then
        error("the timeout must be a number of milliseconds above 0", 2)
    end
    body = body == nil and "" or to_text(body, "the body")
    core.stage_pairs(headers, "header")
    if host_callout(call, cluster, #cluster, body, #body, timeout) ~= 1 then
        return nil, text(call.data, call.length)
    end
    local id, answer = call.number, 0
    while answer == 0 do
        host_wait_for(call, CALLOUT, id)
        suspend("envoy.httpCall")
        answer = host_outcome(call, CALLOUT, id)
    end
    if answer ~= 1 then
        return nil, text(call.data, call.length)
    end
    local response_body = text(call.data, call.length)
    return core.take_pairs(call.count), response_body
end

local function sleep(milliseconds)
    suspendable("envoy.sleep")
    if type(milliseconds) ~= "number" or not (milliseconds >= 0) then
        error("envoy.sleep takes a number of milliseconds", 2)
    end
    if host_timer(call, milliseconds) ~= 1 then
        error("envoy.sleep: " .. text(call.data, call.length), 2)
    end
    local id = call.number
    repeat
        host_wait_for(call, TIMER, id)
        suspend("envoy.sleep")
    until host_outcome(call, TIMER, id) ~= 0
end

-- Headers that belong to the connection or follow from the body; the proxy makes its own.
local OWN_HEADERS = {
    [":status"] = true, ["content-length"] = true, ["transfer-encoding"] = true,
    ["connection"] = true, ["keep-alive"] = true, ["upgrade"] = true,
}

local function respond(headers, body, details)
    suspendable("envoy.respond")
    if type(headers) ~= "table" then
        expect(headers, "table", "the headers")
    end
    local status = tonumber(headers[":status"])
    if not status or not (status >= 200 and status <= 599) or floor(status) ~= status then
        error('the headers of envoy.respond need a ":status" from 200 to 599', 2)
    end
    body = body == nil and "" or to_text(body, "the body")
    details = details == nil and "" or to_text(details, "the details")
    local sent = {}
    for name, value in pairs(headers) do
        if not OWN_HEADERS[name] then
            sent[name] = value
        end
    end
    core.stage_pairs(sent, "header")
    host_reply(call, status, body, #body, details, #details, 0)
    suspend("envoy.respond")
end

function wait.publish(envoy)
    envoy.httpCall = http_call
    envoy.sleep = sleep
    envoy.respond = respond
end

return wait
