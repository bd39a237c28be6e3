-- Bodies. In version 2 a body handler sees the body, or the chunk, that it is called for; in version
-- 1 `get_body` suspends the handler until the body is complete.
local core, wait, envoy = ...
local call, host, text = core.call, core.host, core.text
local fail, to_text, expect = core.fail, core.to_text, core.expect
local pairs, error, type, setmetatable, collect, sub = pairs, error, type, setmetatable, collectgarbage, string.sub
local min = math.min
local host_body, host_body_length, host_set_body = host.body, host.body_length, host.set_body
local host_body_part, host_splice_body = host.body_part, host.splice_body

local LARGE = core.memory_budget / 8
-- A body no larger than this is handed out again while it stays what it is. A larger one would hold on
-- to too much memory after the call.
local KEPT = 64 * 1024
-- More bytes than a body can have.
local MOST = 2 ^ 31 - 1

-- A body larger than this makes room first: LuaJIT does not collect garbage when memory runs out.
local function make_room(length)
    if length > LARGE then
        collect()
    end
end

local function get_body(direction)
    local answer = host_body(call, direction)
    if answer == 1 then
        local length = call.length
        make_room(length)
        return text(call.data, length)
    elseif answer < 0 then
        fail(answer, 2)
    end
    return nil
end

local function get_body_size(direction)
    local length = host_body_length(call, direction)
    if length >= 0 then
        return length
    elseif length < -1 then
        fail(length, 2)
    end
    return nil
end

local function get_body_bytes(direction, first, last)
    if type(first) ~= "number" then
        expect(first, "number", "the first byte's place", 4)
    end
    if last == nil then
        last = -1
    elseif type(last) ~= "number" then
        expect(last, "number", "the last byte's place", 4)
    end
    local answer = host_body_part(call, direction, first, last)
    if answer == 1 then
        local length = call.length
        make_room(length)
        return text(call.data, length)
    elseif answer < 0 then
        fail(answer, 2)
    end
    return nil
end

-- Raises what a change of a body was answered; the plugin is behind the function that changes.
local function check(answer)
    if answer == 0 or answer == -4 then
        error(text(call.data, call.length), 4)
    elseif answer < 0 then
        fail(answer, 3)
    end
end

local function set_body(direction, body)
    if type(body) ~= "string" then
        body = to_text(body, "the body", 4)
    end
    check(host_set_body(call, direction, body, #body))
end

local function append_body(direction, body)
    if type(body) ~= "string" then
        body = to_text(body, "what is appended", 4)
    end
    check(host_splice_body(call, direction, -1, 0, body, #body))
end

local function prepend_body(direction, body)
    if type(body) ~= "string" then
        body = to_text(body, "what is put in front", 4)
    end
    check(host_splice_body(call, direction, 0, 0, body, #body))
end

local function drain_body(direction, length)
    if type(length) ~= "number" or not (length >= 0) then
        error("drain_body takes how many bytes are removed, a number from 0", 3)
    end
    check(host_splice_body(call, direction, 0, min(length, MOST), "", 0))
end

for direction, of in pairs({ [0] = envoy.req, [1] = envoy.resp }) do
    local kept, kept_at

    function of.get_body()
        if kept_at == call.bodies then
            return kept
        end
        local bytes = get_body(direction)
        if bytes ~= nil and #bytes <= KEPT then
            kept, kept_at = bytes, call.bodies
        end
        return bytes
    end

    function of.get_body_size()
        return (get_body_size(direction))
    end

    function of.get_body_bytes(first, last)
        return (get_body_bytes(direction, first, last))
    end

    function of.set_body(body)
        set_body(direction, body)
    end

    function of.append_body(body)
        append_body(direction, body)
    end

    function of.prepend_body(body)
        prepend_body(direction, body)
    end

    function of.drain_body(length)
        drain_body(direction, length)
    end
end

-- Version 1.
local Buffer = {}
Buffer.__index = Buffer
Buffer.__metatable = false

function Buffer:length()
    return #self.bytes
end

-- Bytes from `first` (counted from 0) to before `last`, as Rider documents it.
function Buffer:getBytes(first, last)
    if type(first) ~= "number" or type(last) ~= "number" then
        error("getBytes takes the numbers of the first byte and of the one after the last", 2)
    end
    return sub(self.bytes, first + 1, last)
end

-- Suspends until the body is complete, once per handler: afterwards it is there.
local function complete(direction, what)
    local length = host_body_length(call, direction)
    if length < -1 then
        fail(length, 2)
    end
    if length == -1 then
        local phase = call.phase
        if direction == 0 and phase ~= 0 or direction == 1 and phase ~= 3 then
            error(what .. " is available only in " .. (direction == 0 and "on_request"
                or "on_response"), 3)
        end
        wait.body(what)
    end
end

local body = {}

local function buffer(bytes)
    if bytes == nil or bytes == "" then
        return nil
    end
    return setmetatable({ bytes = bytes }, Buffer)
end

function body.use_version_1()
    for direction, of in pairs({ [0] = envoy.req, [1] = envoy.resp }) do
        local what = direction == 0 and "the request's body" or "the response's body"

        function of.get_body()
            complete(direction, what)
            return (buffer(get_body(direction)))
        end

        function of.set_body(bytes)
            complete(direction, what)
            set_body(direction, bytes)
        end

        function of.append_body(bytes)
            complete(direction, what)
            append_body(direction, bytes)
        end

        function of.prepend_body(bytes)
            complete(direction, what)
            prepend_body(direction, bytes)
        end

        function of.drain_body(length)
            complete(direction, what)
            drain_body(direction, length)
        end

        function of.get_body_size()
            complete(direction, what)
            return (get_body_size(direction))
        end

        function of.get_body_bytes(first, last)
            complete(direction, what)
            return (get_body_bytes(direction, first, last))
        end
    end
end

return body
