-- What a handle of Envoy's Lua filter does that waits or ends the stream: httpCall and respond.
local core, wait, filter = ...
local call, host, text = core.call, core.host, core.text
local type, error, pairs, tonumber, tostring, floor = type, error, core.pairs, tonumber, tostring, math.floor
local find = string.find
local refuse, to_string = filter.refuse, filter.to_string
local suspendable, suspend = wait.suspendable, wait.suspend
local host_callout, host_outcome, host_reply = host.callout, host.outcome, host.reply
local host_wait_for, host_cancel, CALLOUT = host.wait_for, host.cancel, wait.CALLOUT

-- The pairs that the host shows, as the table that httpCall answers: of several values the last, or all.
local function headers_of(count, all)
    if all then
        return core.take_pairs(count)
    end
    local taken, list = {}, call.pairs
    for index = 0, count - 1 do
        local entry = list[index]
        taken[text(entry.name, entry.name_length)] = text(entry.value, entry.value_length)
    end
    return taken
end

-- What Envoy's filter says of a call that brought no response: a response of its own.
local function failure(reason)
    local status, body = "503", "upstream failure"
    if reason == "timeout" then
        status, body = "504", "upstream request timeout"
    end
    return { [":status"] = status, ["content-length"] = tostring(#body), ["content-type"] = "text/plain" }, body
end

-- Headers for the host. Envoy takes texts and numbers.
local function stage(headers, number, what)
    for _, value in pairs(headers) do
        if type(value) == "boolean" then
            refuse(number, what, "string", value)
        end
    end
    core.stage_pairs(headers, "header")
end

-- In milliseconds: the longest that a call may take, where the script sets no end.
local LONGEST = 24 * 3600 * 1000

local OPTIONS = {
    asynchronous = true, timeout_ms = true, trace_sampled = true, return_duplicate_headers = true,
    send_xff = true,
}

local function check_options(options)
    for name in pairs(options) do
        if not OPTIONS[name] then
            error('"' .. core.describe(name) .. '" is not valid key for httpCall() options', 3)
        end
    end
    local timeout = options.timeout_ms
    if timeout ~= nil and type(timeout) ~= "number" then
        error("'timeout_ms' option must be a number", 3)
    end
    return timeout or 0
end

-- Starts the call with the staged headers; false: it cannot be made now.
local function start(cluster, body, timeout)
    if host_callout(call, cluster, #cluster, body, #body, timeout) == 1 then
        return true
    end
    local reason = text(call.data, call.length)
    if reason == "no upstream of that name" then
        error("http call cluster invalid. Must be configured", 3)
    elseif reason == "`:method`, `:path` or `:authority` is missing" then
        error("http call headers must include ':path', ':method', and ':authority'", 3)
    elseif find(reason, "allow.upstreams", 1, true) then
        error(reason, 3)
    end
    return false
end

local function http_call(_, cluster, headers, body, options, asynchronous)
    if type(cluster) ~= "string" then
        cluster = to_string(cluster, 1, "httpCall")
    end
    if type(headers) ~= "table" then
        refuse(2, "httpCall", "table", headers)
    end
    if body == nil then
        body = ""
    elseif type(body) ~= "string" then
        body = to_string(body, 3, "httpCall")
    end
    local timeout, all = options, false
    if type(options) == "table" then
        timeout = check_options(options)
        asynchronous, all = options.asynchronous, options.return_duplicate_headers
    elseif type(options) ~= "number" then
        timeout = tonumber(options) or refuse(4, "httpCall", "number", options)
    elseif asynchronous ~= nil and type(asynchronous) ~= "boolean" then
        error("http call asynchronous flag must be 'true', 'false', or empty", 2)
    end
    if not (timeout >= 0) then
        error("http call timeout must be >= 0", 2)
    end
    suspendable("httpCall()")
    stage(headers, 2, "httpCall")
    local started = start(cluster, body, timeout > 0 and timeout or LONGEST)
    local id = call.number
    if asynchronous then
        if started then
            -- Nobody waits for what comes of it.
            host_cancel(call, CALLOUT, id)
        end
        return
    elseif not started then
        return failure()
    end
    local answer = 0
    while answer == 0 do
        host_wait_for(call, CALLOUT, id)
        suspend("httpCall()")
        answer = host_outcome(call, CALLOUT, id)
    end
    if answer ~= 1 then
        return failure(text(call.data, call.length))
    end
    local response = text(call.data, call.length)
    return headers_of(call.count, all), response ~= "" and response or nil
end

-- What the proxy says for itself.
local OWN = { [":status"] = true, ["content-length"] = true, ["transfer-encoding"] = true }

local function respond(_, headers, body)
    if call.phase ~= 0 then
        error("respond() cannot be called if headers have been continued", 2)
    end
    suspendable("respond()")
    if type(headers) ~= "table" then
        refuse(1, "respond", "table", headers)
    end
    if body == nil then
        body = ""
    elseif type(body) ~= "string" then
        body = to_string(body, 2, "respond")
    end
    local status = tonumber(headers[":status"])
    if not status or not (status >= 200 and status < 600) or floor(status) ~= status then
        error(":status must be between 200-599", 2)
    end
    local sent = {}
    for name, value in pairs(headers) do
        if not OWN[name] then
            sent[name] = value
        end
    end
    stage(sent, 1, "respond")
    host_reply(call, status, body, #body, "lua_response", 12, 1)
    suspend("respond()")
end

local function cannot_respond()
    error("respond not currently supported in the response path", 2)
end

return {
    [0] = { httpCall = http_call, respond = respond },
    [1] = { httpCall = http_call, respond = cannot_respond },
}
