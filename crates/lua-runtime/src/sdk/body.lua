-- Bodies. In version 2 a body handler sees the body, or the chunk, that it is called for; in version
-- 1 `get_body` suspends the handler until the body is complete.
local core, wait, envoy = ...
local call, host, text = core.call, core.host, core.text
local fail, to_text = core.fail, core.to_text
local error, type, setmetatable, collect, sub = error, type, setmetatable, collectgarbage, string.sub
local host_body, host_body_length, host_set_body = host.body, host.body_length, host.set_body

-- A body larger than this makes room first: LuaJIT does not collect garbage when memory runs out.
local LARGE = core.memory_budget / 8

local function get_body(direction)
    local length = host_body_length(call, direction)
    if length < -1 then
        fail(length, 2)
    end
    if length > LARGE then
        collect()
    end
    if host_body(call, direction) == 1 then
        return text(call.data, call.length)
    end
    return nil
end

local function set_body(direction, body)
    if type(body) ~= "string" then
        body = to_text(body, "the body", 4)
    end
    local answer = host_set_body(call, direction, body, #body)
    if answer == 0 or answer == -4 then
        error(text(call.data, call.length), 3)
    elseif answer < 0 then
        fail(answer, 2)
    end
end

function envoy.req.get_body()
    return (get_body(0))
end

function envoy.resp.get_body()
    return (get_body(1))
end

function envoy.req.set_body(body)
    set_body(0, body)
end

function envoy.resp.set_body(body)
    set_body(1, body)
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
    function envoy.req.get_body()
        complete(0, "the request's body")
        return (buffer(get_body(0)))
    end
    function envoy.resp.get_body()
        complete(1, "the response's body")
        return (buffer(get_body(1)))
    end
    function envoy.req.set_body(bytes)
        complete(0, "the request's body")
        set_body(0, bytes)
    end
    function envoy.resp.set_body(bytes)
        complete(1, "the response's body")
        set_body(1, bytes)
    end
end

return body
