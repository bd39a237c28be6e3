-- In tests only: counts the traces that LuaJIT makes, and notes what it does not compile.
local core, envoy, strings = ...
local attach, funcinfo = jit.attach, require("jit.util").funcinfo
local tostring, pairs, ipairs, type, error, next = tostring, pairs, ipairs, type, error, next
local concat = table.concat


-- Numbers of the reasons that mean "not implemented" (lj_traceerr.h).
local NOT_IMPLEMENTED = {
    [7] = "bytecode", [15] = "variant of a function", [16] = "return to a lower frame",
    [20] = "mixed table", [22] = "conversion of a C type", [23] = "C function type",
    [32] = "instruction", [33] = "PHI", [34] = "registers",
}

local made, notes

-- The functions that the trace in the making has gone through, and those that some finished trace has.
local recorded, compiled = {}, {}
local function record(_, func)
    recorded[func] = true
end

local function watch(what, _, func, pc, other, exit)
    local place = ""
    if func then
        local info = funcinfo(func, pc)
        place = tostring(info.source) .. ":" .. tostring(info.currentline)
    end
    if what == "start" or what == "abort" then
        recorded = {}
    end
    if what == "stop" then
        made = made + 1
        for known in pairs(recorded) do
            compiled[known] = true
        end
    elseif what == "start" and exit == -1 then
        notes[#notes + 1] = place .. ": left for a C function"
    elseif what == "abort" and NOT_IMPLEMENTED[other] then
        notes[#notes + 1] = place .. ": " .. NOT_IMPLEMENTED[other] .. " " .. tostring(exit)
    end
end

function envoy.trace_start()
    made, notes = 0, {}
    compiled = {}
    attach(watch, "trace")
    attach(record, "record")
end

-- Methods of objects, by what they are called in the annotations.
local methods = {}
function envoy.trace_methods(class, object, ...)
    for _, name in ipairs({ ... }) do
        local place = class .. ":" .. name
        methods[place] = object[name]
        if type(object[name]) ~= "function" then
            error(place .. " is no function")
        end
    end
end

-- Names of LuaJIT's own functions, for what of them a plugin can reach.
local builtin_names, own_libraries = {}, {}
local function note_builtins(library, prefix)
    if own_libraries[library] or prefix == "package." and library == package then
        return
    end
    own_libraries[library] = prefix
    for name, value in pairs(library) do
        local full = prefix .. tostring(name)
        -- Of several names, always the same one.
        if type(value) == "function" and not (builtin_names[value] and builtin_names[value] <= full) then
            builtin_names[value] = full
        elseif type(value) == "table" then
            note_builtins(value, prefix .. tostring(name) .. ".")
        end
    end
end
note_builtins(_G, "")
note_builtins(package.loaded, "")
note_builtins(package, "package.in.")
builtin_names[ipairs({})] = "ipairs's iterator"

-- The name of one of LuaJIT's own functions or tables, or nil.
function envoy.builtin_name(value)
    return builtin_names[value] or own_libraries[value]
end

-- How many members LuaJIT's own tables of globals and functions still have.
function envoy.builtins_left()
    local left = 0
    for library in pairs(own_libraries) do
        for _ in next, library do
            left = left + 1
        end
    end
    return left
end

local sdk_functions

function envoy.trace_report()
    attach(watch)
    attach(record)
    envoy.logInfo(tostring(made))
    for _, note in ipairs(notes) do
        envoy.logInfo(note)
    end
    -- And which functions of the SDK are in a trace.
    for place, member in pairs(sdk_functions()) do
        if compiled[member] then
            envoy.logInfo("compiled: " .. place)
        end
    end
    for place, member in pairs(methods) do
        if compiled[member] then
            envoy.logInfo("compiled: " .. place)
        end
    end
end

-- LuaJIT's own functions, to compare with.
envoy.original = {
    find = string.find, match = string.match, gmatch = string.gmatch, gsub = string.gsub,
    sort = table.sort,
}

-- The SDK's functions with the names of their parameters, one a line.
local getinfo, getlocal = debug.getinfo, debug.getlocal

local function list(path, members, found)
    for name, member in pairs(members) do
        local place = path .. "." .. name
        if type(member) == "table" and name ~= "original" and name ~= "null" then
            list(place, member, found)
        elseif type(member) == "function" then
            found[place] = member
        end
    end
end

-- Those that stand for LuaJIT's own, too.
local OF_TABLES = { sort = true, insert = true, move = true, pack = true, getn = true, new_table = true, clear_table = true }
function sdk_functions()
    local found = {}
    list("envoy", envoy, found)
    for name, member in pairs(strings) do
        found[(OF_TABLES[name] and "table." or "string.") .. name] = member
    end
    return found
end

function envoy.sdk_functions()
    local found = {}
    list("envoy", envoy, found)
    for place, member in pairs(found) do
        local parameters = {}
        for index = 1, getinfo(member, "u").nparams do
            parameters[index] = getlocal(member, index)
        end
        envoy.logInfo(place .. "(" .. concat(parameters, ", ") .. ")")
    end
end

-- The names alone.
function envoy.sdk_names()
    for place in pairs(sdk_functions()) do
        envoy.logInfo(place)
    end
end
