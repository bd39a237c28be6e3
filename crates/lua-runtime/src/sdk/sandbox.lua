-- The plugin's globals: a list of what it may use, nothing else. No file, process, environment, module
-- loader, bytecode, debug library, FFI, function environment or finalizer.
local core, wait, envoy = ...
local type, error, load, pcall, select, tostring = type, error, load, pcall, select, tostring
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
    "assert", "error", "getmetatable", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget",
    "rawset", "select", "setmetatable", "tonumber", "tostring", "type", "unpack", "_VERSION",
})
globals._G = globals

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
globals.os = copy(os, { "clock", "date", "difftime", "time" })
globals.string = copy(string, {
    "byte", "char", "find", "format", "gmatch", "gsub", "len", "lower", "match", "rep", "reverse",
    "sub", "upper",
})
globals.table = copy(table, { "concat", "insert", "maxn", "remove", "sort" })

-- Methods of strings come from the same list, and the table that says so is out of reach.
local string_metatable = getmetatable("")
string_metatable.__index = globals.string
string_metatable.__metatable = "string"

globals.coroutine = copy(coroutine, { "isyieldable", "resume", "running", "status" })
function globals.coroutine.create(run)
    local thread = create(run)
    own[thread] = true
    return thread
end
local function passed(done, ...)
    if not done then
        error((...), 0)
    end
    return ...
end
function globals.coroutine.wrap(run)
    local thread = create(run)
    own[thread] = true
    return function(...)
        return passed(resume(thread, ...))
    end
end
function globals.coroutine.yield(...)
    local thread = running()
    if thread == nil or not own[thread] then
        error("coroutine.yield outside of a coroutine of the plugin's own", 2)
    end
    return yield(...)
end

-- Text only: bytecode could break the VM.
function globals.load(chunk, name, _, environment)
    return load(chunk, name, "t", environment or globals)
end
function globals.loadstring(chunk, name)
    if type(chunk) ~= "string" then
        error("loadstring takes a string", 2)
    end
    return load(chunk, name, "t", globals)
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
