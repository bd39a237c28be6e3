-- The plugin's globals: a list of what it may use, nothing else. No file, process, environment, module
-- loader, bytecode, debug library, FFI, function environment or finalizer.
local core, wait, envoy, strings, load_text = ...
local type, error, pcall, select, tostring = type, error, pcall, select, tostring
local running, create, resume, yield = coroutine.running, coroutine.create, coroutine.resume, coroutine.yield
local concat, collect = table.concat, collectgarbage
local own = wait.own

local function copy(from, names)
    local to = {}
    for _, name in ipairs(names) do
        to[name] = from[name]
    end
    return to
end

local globals = copy(_G, {
    "assert", "error", "getmetatable", "next", "pcall", "rawequal", "rawget", "rawlen",
    "rawset", "select", "setmetatable", "tonumber", "type", "unpack", "_VERSION",
})
globals._G = globals

-- LuaJIT's own go on to the metamethod without an instruction of Lua in between: with themselves for it, or each other,
-- they would go on for ever where no hook counts. A plugin never gets them; these have instructions.
local ipairs, pairs = ipairs, pairs
function globals.ipairs(value)
    return ipairs(value)
end
function globals.pairs(value)
    return pairs(value)
end
function globals.tostring(value)
    return tostring(value)
end

-- LuaJIT's own xpcall runs the handler of an error where it was raised: for the error that ends an
-- overdue call this is inside the hook, where no hook can end the handler in its turn.
local function handled(handler, done, ...)
    if done then
        return true, ...
    end
    return false, select(2, pcall(handler, (...)))
end
function globals.xpcall(run, handler, ...)
    return handled(handler, pcall(run, ...))
end
globals.envoy = envoy
globals.bit = copy(bit, {
    "arshift", "band", "bnot", "bor", "bswap", "bxor", "lshift", "rol", "ror", "rshift", "tobit",
    "tohex",
})
globals.math = copy(math, {
    "abs", "acos", "asin", "atan", "atan2", "ceil", "cos", "cosh", "deg", "exp", "floor", "fmod",
    "frexp", "huge", "ldexp", "log", "log10", "max", "min", "modf", "pi", "pow", "rad", "random",
    "randomseed", "sin", "sinh", "sqrt", "tan", "tanh",
})
globals.os = copy(os, { "clock", "difftime", "time" })
local date = os.date
-- The C library takes its time for each item of a format.
function globals.os.date(format, time)
    if type(format) == "string" and #format > 1000 then
        error("os.date takes a format of 1000 bytes at most", 2)
    end
    if time == nil then
        return date(format)
    end
    return date(format, time)
end
globals.string = copy(string, { "byte", "char", "len", "sub" })
globals.table = copy(table, { "maxn", "remove" })
for _, name in ipairs({ "find", "format", "gmatch", "gsub", "lower", "match", "rep", "reverse", "upper" }) do
    globals.string[name] = strings[name]
end
globals.table.unpack = unpack
for _, name in ipairs({ "concat", "getn", "insert", "move", "pack", "sort" }) do
    globals.table[name] = strings[name]
end

-- Methods of strings come from the same list, and the table that says so is out of reach.
local string_metatable = getmetatable("")
string_metatable.__index = globals.string
string_metatable.__metatable = "string"

globals.coroutine = copy(coroutine, { "isyieldable", "running", "status" })
function globals.coroutine.create(run)
    local thread = create(run)
    own[thread] = 0
    return thread
end
-- Each coroutine that runs in another takes a part of the worker's own stack.
local DEEPEST = 100
local function resumed(thread, ...)
    if not own[thread] and type(thread) == "thread" then
        -- A handler's, which waits for the host.
        return false, "cannot resume a coroutine that is not the plugin's own"
    end
    local within = running()
    local depth = (within and own[within] or 0) + 1
    if depth > DEEPEST then
        return false, "coroutines are nested too deeply (" .. DEEPEST .. " in each other)"
    end
    if own[thread] then
        own[thread] = depth
    end
    return resume(thread, ...)
end
function globals.coroutine.resume(thread, ...)
    return resumed(thread, ...)
end
local function passed(done, ...)
    if not done then
        error((...), 0)
    end
    return ...
end
function globals.coroutine.wrap(run)
    local thread = create(run)
    own[thread] = 0
    return function(...)
        return passed(resumed(thread, ...))
    end
end
function globals.coroutine.yield(...)
    local thread = running()
    if thread == nil or not own[thread] then
        error("coroutine.yield outside of a coroutine of the plugin's own", 2)
    end
    return yield(...)
end

-- Text only: bytecode could break the VM. `load_text` (chunks.rs) ends with the time budget of the call.
function globals.load(chunk, name, mode, environment)
    if type(mode) == "string" and not strings.find(mode, "t", 1, true) then
        return nil, "attempt to load chunk with wrong mode"
    end
    if type(chunk) == "function" then
        -- Not from within the compiler, where one load in another takes much of the worker's own stack.
        local pieces, used = {}, 0
        while true do
            local piece = chunk()
            if piece == nil or piece == "" then
                break
            elseif type(piece) ~= "string" then
                return nil, "reader function must return a string"
            end
            used = used + 1
            pieces[used] = piece
        end
        chunk, name = concat(pieces, "", 1, used), name or "=(load)"
    elseif type(chunk) ~= "string" then
        error("load takes a string or a function", 2)
    end
    name = name or chunk
    if type(name) ~= "string" then
        error("the name of a chunk must be a string", 2)
    end
    if environment == nil then
        environment = globals
    elseif type(environment) ~= "table" then
        error("the environment of a chunk must be a table, not a " .. type(environment), 2)
    end
    return load_text(chunk, name, environment)
end
function globals.loadstring(chunk, name)
    if type(chunk) ~= "string" then
        error("loadstring takes a string", 2)
    end
    name = name or chunk
    if type(name) ~= "string" then
        error("the name of a chunk must be a string", 2)
    end
    return load_text(chunk, name, globals)
end

function globals.collectgarbage(option)
    if option == "count" then
        return collect("count")
    end
    error('collectgarbage answers "count" only; memory is the host\'s matter', 2)
end

function globals.print(...)
    local parts = {}
    for i = 1, select("#", ...) do
        parts[i] = tostring((select(i, ...)))
    end
    envoy.logInfo(concat(parts, "\t"))
end

return globals
