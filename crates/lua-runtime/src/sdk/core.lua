-- The ground of the SDK: the FFI declarations, the call that runs, and how errors are raised.
--
-- The traps: LuaJIT compiles only FFI calls with flat arguments, so what is more than a number comes
-- back through `call`. And no cdata may reach the plugin: each value that leaves is made a Lua value.
local declaration, call_address, host_address, memory_budget = ...
local ffi = require("ffi")

ffi.cdef([[
struct outrider_pair {
    const char *name; const char *value; int32_t name_length; int32_t value_length;
};
struct outrider_tape { int32_t kind; int32_t length; const char *data; double number; };
struct outrider_call {
    int32_t phase; int32_t config; int32_t length; int32_t count;
    const char *data; double number;
    const struct outrider_pair *pairs; const struct outrider_tape *tape;
    int32_t end_of_stream;
    double bodies;
};
]])
ffi.cdef(declaration)

local call = ffi.cast("struct outrider_call *", call_address)
local host = ffi.cast("const struct outrider_host *", host_address)
local text = ffi.string
local type, error, tostring, pcall, getmetatable = type, error, tostring, pcall, getmetatable
local ipairs, rawget, find = ipairs, rawget, string.find
local host_result, host_argument = host.result, host.argument

local core = {
    call = call,
    host = host,
    text = text,
    memory_budget = memory_budget,
    REQUEST = 0,
    RESPONSE = 1,
    LOG_PHASE = 6,
    -- No phase: the function of a timer runs.
    BACKGROUND = 7,
}

-- How the SDK goes through tables of plugins: without their metamethods, so that no code of a plugin's runs in the middle
-- of a function of the SDK's. `rawlen` and `next` are the other two.
local next = next
function core.pairs(value)
    return next, value
end
local function raw_step(value, index)
    local element = rawget(value, index + 1)
    if element ~= nil then
        return index + 1, element
    end
end
function core.ipairs(value)
    return raw_step, value, 0
end

-- Raises what a negative answer of the host means, at the plugin's line (or `level` above it).
function core.fail(answer, level)
    level = (level or 1) + 2
    if answer == -2 then
        error("there is no stream here: call this from a handler, not while the plugin loads or "
            .. "from on_configure", level)
    elseif answer == -3 then
        error("the stream's state was lost as its VM used up its memory budget", level)
    elseif answer == -5 then
        -- The watchdog ends the call; this says so should the plugin catch it before.
        error("the time budget of the call is used up", level)
    elseif answer == -6 then
        error("a header's name must be a token of HTTP, and its value hold no line break and no NUL",
            level)
    elseif answer == -8 then
        error(text(call.data, call.length), level)
    else
        error("the host could not answer (" .. tostring(answer) .. ")", level)
    end
end

-- Raises for an argument of a wrong type; `level` is the plugin's, as `error` counts it.
function core.expect(value, wanted, what, level)
    error(what .. " must be a " .. wanted .. ", not " .. (value == nil and "nil" or type(value)), level or 3)
end

-- A text from a text, number or truth value, as header values are given.
function core.to_text(value, what, level)
    local kind = type(value)
    if kind == "string" then
        return value
    elseif kind == "number" or kind == "boolean" then
        return tostring(value)
    end
    error(what .. " must be a string, not " .. (value == nil and "nil" or kind), level or 3)
end

-- Hands a text to the host as a result.
function core.result(kind, value)
    host_result(call, kind, value, #value)
end

-- The text that the host hands over as its argument of this number, or nil.
function core.argument(index)
    if host_argument(call, index) == 1 then
        return text(call.data, call.length)
    end
end

-- An error value as text. Never raises.
function core.describe(value)
    local kind = type(value)
    if kind == "string" then
        return value
    elseif kind == "table" then
        local done, made = pcall(tostring, value)
        if done and type(made) == "string" and not find(made, "^table: ") then
            return made
        end
        for _, key in ipairs({ "message", "error", "msg", "err", 1 }) do
            local member = rawget(value, key)
            if type(member) == "string" or type(member) == "number" then
                return tostring(member)
            end
        end
        return "an error value that is a table without a message"
    elseif kind == "nil" then
        return "an error without a value (nil)"
    end
    return tostring(value)
end

return core
