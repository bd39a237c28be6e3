-- Callouts beside the handler: several at once, without waiting for any, and such whose request and
-- response are sent and received in parts.
--
-- What comes before it is asked for, the host keeps, within bounds. A handle that was waited for holds the
-- outcome itself from then on.
local core, wait, envoy = ...
local call, host, text = core.call, core.host, core.text
local fail, expect, to_text, stage_pairs = core.fail, core.expect, core.to_text, core.stage_pairs
local type, error, pairs, rawlen, setmetatable, concat = type, error, core.pairs, rawlen, setmetatable, table.concat
local needs_stream, suspendable, suspend = wait.needs_stream, wait.suspendable, wait.suspend
local own_handle, check_owner = wait.own_handle, wait.check_owner
local host_callout, host_open_stream, host_timer = host.callout, host.open_stream, host.timer
local host_send_data, host_send_trailers = host.send_data, host.send_trailers
local host_wait_for, host_outcome, host_has_outcome = host.wait_for, host.outcome, host.has_outcome
local host_cancel, host_part = host.cancel, host.stream_part
local CALLOUT, TIMER, HTTP_STREAM = wait.CALLOUT, wait.TIMER, wait.HTTP_STREAM
-- Parts of a response, as waiting.rs numbers them.
local HEADERS, CHUNK, TRAILERS = 0, 1, 2

local KNOWN = {
    cluster = true, headers = true, body = true, timeout_ms = true, method = true, path = true,
    host = true,
}
local KNOWN_OF_STREAMS = setmetatable({ end_stream = true }, { __index = KNOWN })
local NAMES = "cluster, method, path, host, headers, body and timeout_ms"

-- Checks the options of a request and makes its headers complete. Errors are the plugin's, two functions
-- up. Answers cluster, headers and body.
local function request(options, what, known)
    if type(options) ~= "table" then
        error(what .. " takes a table: " .. what .. "{ cluster = \"auth\", path = \"/check\" }", 3)
    end
    for name in pairs(options) do
        if not known[name] then
            error(what .. " has no option " .. core.describe(name) .. "; it has " .. NAMES
                .. (known == KNOWN and "" or ", and end_stream"), 3)
        end
    end
    local cluster, given, body = options.cluster, options.headers, options.body
    if type(cluster) ~= "string" then
        expect(cluster, "string", "the cluster", 4)
    end
    if given ~= nil and type(given) ~= "table" then
        expect(given, "table", "the headers", 4)
    end
    body = body == nil and "" or to_text(body, "the body", 4)
    local headers = {}
    if given then
        for name, value in pairs(given) do
            headers[name] = value
        end
    end
    if options.method ~= nil or headers[":method"] == nil then
        headers[":method"] = options.method or (body == "" and "GET" or "POST")
    end
    if options.path ~= nil or headers[":path"] == nil then
        headers[":path"] = options.path or "/"
    end
    if options.host ~= nil or headers[":authority"] == nil then
        headers[":authority"] = options.host or cluster
    end
    return cluster, headers, body
end

-- A timeout in milliseconds; what is not said is `default`.
local function timeout_of(value, default)
    if value == nil then
        return default
    elseif type(value) ~= "number" or not (value > 0) then
        error("the timeout must be a number of milliseconds above 0", 3)
    end
    return value
end

-- How long a callout waits when the plugin does not say, in milliseconds.
local DEFAULT_TIMEOUT = 1000

-- The common part of handles: `kind`, `id` while something may come, `waiting` while a handler waits. `id` means something
-- in the handle's own stream only.
local Callout = {}
Callout.__index = Callout
Callout.__metatable = false

-- Takes what came of a callout, if it has come. The handle has `headers` and `body`, or `reason`, then.
local function settle(handle)
    local id = handle.id
    if id == nil then
        return true
    end
    local answer = host_outcome(call, CALLOUT, id)
    if answer == 0 then
        return false
    elseif answer < 0 then
        fail(answer, 2)
    end
    handle.id = nil
    if answer == 1 then
        handle.body = text(call.data, call.length)
        handle.headers = core.take_pairs(call.count)
    else
        handle.reason = text(call.data, call.length)
    end
    return true
end

-- Whether asking would answer at once.
local function is_ready(handle)
    local id = handle.id
    if id == nil then
        return true
    end
    local answer = host_has_outcome(call, handle.kind, id)
    if answer < 0 then
        fail(answer, 2)
    end
    return answer == 1
end

-- Suspends the handler until something has come of one of the handles, or of the timer.
local function wait_for(handles, timer, what, level)
    for i = 1, rawlen(handles) do
        if handles[i].waiting then
            error(what .. ": another handler waits for it already", level)
        end
    end
    for i = 1, rawlen(handles) do
        local handle = handles[i]
        if handle.id ~= nil then
            host_wait_for(call, handle.kind, handle.id)
        end
    end
    if timer ~= nil then
        host_wait_for(call, TIMER, timer)
    end
    for i = 1, rawlen(handles) do
        handles[i].waiting = true
    end
    suspend(what, level + 1)
    for i = 1, rawlen(handles) do
        handles[i].waiting = nil
    end
end

local function start_timer(milliseconds, what, level)
    if milliseconds == nil then
        return nil
    end
    if host_timer(call, milliseconds) ~= 1 then
        error(what .. ": " .. text(call.data, call.length), level)
    end
    return call.number
end

local function stop_timer(timer)
    if timer ~= nil then
        host_cancel(call, TIMER, timer)
    end
end

-- Waits until `done()` says so. Answers false when the time was over first.
local function wait_until(done, handles, timeout, what, level)
    if done(handles) then
        return true
    end
    suspendable(what, level + 1)
    local timer = start_timer(timeout, what, level + 1)
    while true do
        wait_for(handles, timer, what, level + 1)
        if done(handles) then
            stop_timer(timer)
            return true
        elseif timer ~= nil and host_outcome(call, TIMER, timer) == 3 then
            return false
        end
    end
end

local function none_is_pending(handles)
    for i = 1, rawlen(handles) do
        if not settle(handles[i]) then
            return false
        end
    end
    return true
end

function Callout:wait()
    if self.id ~= nil then
        check_owner(self, "wait", 3)
        wait_until(none_is_pending, { self }, nil, "wait", 3)
    end
    if self.headers then
        return self.headers, self.body
    end
    return nil, self.reason
end

function Callout:done()
    if self.id ~= nil then
        check_owner(self, "done", 3)
    end
    return (is_ready(self))
end

function Callout:cancel()
    local id = self.id
    if id ~= nil then
        check_owner(self, "cancel", 3)
        self.id, self.reason = nil, "cancelled"
        host_cancel(call, CALLOUT, id)
    end
end

local callout = {}

function callout.start(options)
    needs_stream("envoy.callout.start")
    local cluster, headers, body = request(options, "envoy.callout.start", KNOWN)
    local timeout = timeout_of(options.timeout_ms, DEFAULT_TIMEOUT)
    stage_pairs(headers, "header")
    local handle = own_handle(setmetatable({ kind = CALLOUT }, Callout), 3)
    if host_callout(call, cluster, #cluster, body, #body, timeout) == 1 then
        handle.id = call.number
    else
        handle.reason = text(call.data, call.length)
    end
    return handle
end

function callout.send(options)
    needs_stream("envoy.callout.send")
    local cluster, headers, body = request(options, "envoy.callout.send", KNOWN)
    local timeout = timeout_of(options.timeout_ms, DEFAULT_TIMEOUT)
    stage_pairs(headers, "header")
    if host_callout(call, cluster, #cluster, body, #body, timeout) ~= 1 then
        return nil, text(call.data, call.length)
    end
    host_cancel(call, CALLOUT, call.number)
    return true
end

local Stream = {}
Stream.__index = Stream
Stream.__metatable = false

local function check_handles(handles, what, only_callouts)
    if type(handles) ~= "table" or rawlen(handles) == 0 then
        error(what .. " takes a list of callouts: " .. what .. "({ a, b })", 3)
    end
    for i = 1, rawlen(handles) do
        local handle = handles[i]
        local kind = type(handle) == "table" and handle.kind
        if kind ~= CALLOUT and (only_callouts or kind ~= HTTP_STREAM) then
            error(what .. ": number " .. i .. " of the list is no callout", 3)
        end
        if handle.id ~= nil then
            check_owner(handle, what .. ": number " .. i .. " of the list", 4)
        end
    end
end

function callout.wait_all(handles, timeout)
    check_handles(handles, "envoy.callout.wait_all", true)
    timeout = timeout_of(timeout)
    if wait_until(none_is_pending, handles, timeout, "envoy.callout.wait_all", 2) then
        return true
    end
    return nil, "timeout"
end

local function first_ready(handles)
    for i = 1, rawlen(handles) do
        if is_ready(handles[i]) then
            return i
        end
    end
    return nil
end

function callout.wait_any(handles, timeout)
    check_handles(handles, "envoy.callout.wait_any")
    timeout = timeout_of(timeout)
    if wait_until(first_ready, handles, timeout, "envoy.callout.wait_any", 2) then
        local index = first_ready(handles)
        local handle = handles[index]
        if handle.kind == CALLOUT then
            settle(handle)
        end
        return handle, index
    end
    return nil, "timeout"
end

-- Callouts in parts.

local CLOSED = "the stream is closed"

function callout.stream(options)
    needs_stream("envoy.callout.stream")
    local cluster, headers, body = request(options, "envoy.callout.stream", KNOWN_OF_STREAMS)
    local timeout = timeout_of(options.timeout_ms, 0)
    local ended = options.end_stream
    if ended ~= nil and type(ended) ~= "boolean" then
        expect(ended, "boolean", "end_stream")
    end
    stage_pairs(headers, "header")
    local handle = own_handle(setmetatable({ kind = HTTP_STREAM, complete = ended }, Stream), 3)
    if host_open_stream(call, cluster, #cluster, body, #body, timeout, ended and 1 or 0) == 1 then
        handle.id = call.number
    else
        handle.reason = text(call.data, call.length)
    end
    return handle
end

-- Why nothing can be sent, or nil.
local function cannot_send(handle, what)
    if handle.id == nil then
        return handle.reason
    end
    check_owner(handle, what, 4)
    if handle.complete then
        return "the request is complete"
    end
    return nil
end

local OVER = "the stream is over"

function Stream:send(data, end_stream)
    data = data == nil and "" or to_text(data, "the data")
    local reason = cannot_send(self, "send")
    if reason then
        return nil, reason
    end
    local answer = host_send_data(call, self.id, data, #data, end_stream and 1 or 0)
    if answer == -4 then
        return nil, text(call.data, call.length)
    elseif answer ~= 1 then
        return nil, OVER
    end
    if end_stream then
        self.complete = true
    end
    return true
end

function Stream:send_trailers(trailers)
    if type(trailers) ~= "table" then
        expect(trailers, "table", "the trailers")
    end
    local reason = cannot_send(self, "send_trailers")
    if reason then
        return nil, reason
    end
    stage_pairs(trailers, "trailer")
    local answer = host_send_trailers(call, self.id)
    if answer == -4 then
        return nil, text(call.data, call.length)
    elseif answer ~= 1 then
        return nil, OVER
    end
    self.complete = true
    return true
end

-- Called at the end of `part`, in its place.
local function wait_for_part(handle, which, timeout, what)
    local answer
    local function has_come()
        -- It was closed while this waited.
        if handle.id == nil then
            answer = 5
            return true
        end
        answer = host_part(call, handle.id, which)
        if answer < 0 then
            fail(answer, 4)
        end
        return answer ~= 0
    end
    if wait_until(has_come, { handle }, timeout, what, 4) then
        return answer
    end
    return 4
end

-- Waits for a part of the response. Answers as `stream_part` does, and 4 when the time is over. What has
-- come already is taken without a closure, which LuaJIT would not compile.
local function part(handle, which, timeout, what)
    if handle.id == nil then
        return 5
    end
    check_owner(handle, what, 4)
    local answer = host_part(call, handle.id, which)
    if answer < 0 then
        fail(answer, 2)
    elseif answer ~= 0 then
        return answer
    end
    return wait_for_part(handle, which, timeout, what)
end

-- What a part that did not come is answered with.
local function absent(handle, answer)
    if answer == 2 then
        return nil, text(call.data, call.length)
    elseif answer == 4 then
        return nil, "timeout"
    elseif answer == 5 then
        return nil, handle.reason
    end
    return nil
end

function Stream:headers(timeout)
    timeout = timeout_of(timeout)
    if self.response then
        return self.response
    end
    local answer = part(self, HEADERS, timeout, "headers")
    if answer == 1 then
        self.response = core.take_pairs(call.count)
        return self.response
    end
    return absent(self, answer)
end

function Stream:read(timeout)
    timeout = timeout_of(timeout)
    local answer = part(self, CHUNK, timeout, "read")
    if answer == 1 then
        return text(call.data, call.length)
    end
    return absent(self, answer)
end

function Stream:chunks()
    return function()
        local answer = part(self, CHUNK, nil, "read")
        if answer == 1 then
            return text(call.data, call.length)
        end
        local _, reason = absent(self, answer)
        self.broken = reason
        return nil
    end
end

function Stream:read_all(timeout)
    timeout = timeout_of(timeout)
    local parts, count = {}, 0
    while true do
        local answer = part(self, CHUNK, timeout, "read_all")
        if answer == 1 then
            count = count + 1
            parts[count] = text(call.data, call.length)
        elseif answer == 3 then
            return concat(parts)
        else
            return absent(self, answer)
        end
    end
end

function Stream:trailers(timeout)
    timeout = timeout_of(timeout)
    if self.last then
        return self.last
    end
    local answer = part(self, TRAILERS, timeout, "trailers")
    if answer == 1 then
        self.last = core.take_pairs(call.count)
        return self.last
    end
    return absent(self, answer)
end

-- Whether asking would answer at once.
function Stream:done()
    if self.id ~= nil then
        check_owner(self, "done", 3)
    end
    return (is_ready(self))
end

function Stream:close()
    local id = self.id
    if id ~= nil then
        check_owner(self, "close", 3)
        self.id, self.reason = nil, CLOSED
        host_cancel(call, HTTP_STREAM, id)
    end
end

envoy.callout = callout
