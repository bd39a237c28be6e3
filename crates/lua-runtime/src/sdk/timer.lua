-- Timers with a function: it runs beside the handlers, while the stream lives. It may do what a handler
-- may, but see or wait for a body.
local core, wait, envoy = ...
local call, host, text = core.call, core.host, core.text
local fail, expect = core.fail, core.expect
local type, error, setmetatable = type, error, setmetatable
local needs_stream = wait.needs_stream
local host_timer, host_cancel, host_due_timer, host_index = host.timer, host.cancel, host.due_timer, host.stream_index
local TIMER = wait.TIMER

-- A function that is to run again may not keep a worker busy.
local SHORTEST_PERIOD = 10

-- Timers by the number of the stream's entry, then by their own.
local timers = {}

local Timer = {}
Timer.__index = Timer
Timer.__metatable = false

-- What a handle keeps out of the plugin's sight: its function.
local functions = setmetatable({}, { __mode = "k" })

-- Starts the timer; answers why it cannot be started.
local function start(handle)
    local index = host_index(call)
    if index < 0 then
        fail(index, 3)
    end
    if host_timer(call, handle.delay) ~= 1 then
        return text(call.data, call.length)
    end
    local own = timers[index]
    if own == nil then
        own = {}
        timers[index] = own
    end
    handle.id = call.number
    own[handle.id] = handle
    return nil
end

local function new(what, delay, run, least, repeats)
    needs_stream(what, 3)
    if type(delay) ~= "number" or not (delay >= least) then
        error(what .. " takes a number of milliseconds" .. (least > 0 and " from " .. least or ""), 3)
    end
    if type(run) ~= "function" then
        expect(run, "function", "what is to run", 4)
    end
    local handle = setmetatable({ delay = delay, repeats = repeats }, Timer)
    functions[handle] = run
    local reason = start(handle)
    if reason then
        return nil, reason
    end
    return handle
end

function Timer:cancel()
    local id = self.id
    if id ~= nil then
        local own = timers[host_index(call)]
        if own == nil or own[id] ~= self then
            error("cancel: it belongs to another stream, or its stream is over", 2)
        end
        self.id, own[id] = nil, nil
        host_cancel(call, TIMER, id)
    end
    self.repeats = false
end

envoy.timer = {
    after = function(delay, run)
        local handle, reason = new("envoy.timer.after", delay, run, 0, false)
        return handle, reason
    end,
    every = function(delay, run)
        local handle, reason = new("envoy.timer.every", delay, run, SHORTEST_PERIOD, true)
        return handle, reason
    end,
}

local timer = {}

-- Runs the function of the timer that is due, in a coroutine of its own.
function timer.fire()
    if host_due_timer(call) ~= 1 then
        return
    end
    local id = call.number
    local own = timers[host_index(call)]
    local handle = own and own[id]
    if handle == nil then
        return
    end
    own[id], handle.id = nil, nil
    functions[handle]()
    if handle.repeats then
        start(handle)
    end
end

-- The stream has ended.
function timer.close(index)
    timers[index] = nil
end

return timer
