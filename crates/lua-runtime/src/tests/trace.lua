-- In tests only: counts the traces that LuaJIT makes, and notes what it does not compile.
local core, envoy = ...
local jit, funcinfo = jit, require("jit.util").funcinfo


-- Numbers of the reasons that mean "not implemented" (lj_traceerr.h).
local NOT_IMPLEMENTED = {
    [7] = "bytecode", [15] = "variant of a function", [16] = "return to a lower frame",
    [20] = "mixed table", [22] = "conversion of a C type", [23] = "C function type",
    [32] = "instruction", [33] = "PHI", [34] = "registers",
}

local made, notes

local function watch(what, _, func, pc, other, exit)
    local place = ""
    if func then
        local info = funcinfo(func, pc)
        place = tostring(info.source) .. ":" .. tostring(info.currentline)
    end
    if what == "stop" then
        made = made + 1
    elseif what == "start" and exit == -1 then
        notes[#notes + 1] = place .. ": left for a C function"
    elseif what == "abort" and NOT_IMPLEMENTED[other] then
        notes[#notes + 1] = place .. ": " .. NOT_IMPLEMENTED[other] .. " " .. tostring(exit)
    end
end

function envoy.trace_start()
    made, notes = 0, {}
    jit.attach(watch, "trace")
end

function envoy.trace_report()
    jit.attach(watch)
    envoy.logInfo(tostring(made))
    for _, note in ipairs(notes) do
        envoy.logInfo(note)
    end
end

-- LuaJIT's own functions, to compare with.
envoy.original = {
    find = string.find, match = string.match, gmatch = string.gmatch, gsub = string.gsub,
    sort = table.sort,
}

-- The SDK's functions with the names of their parameters, one a line.
local getinfo, getlocal = debug.getinfo, debug.getlocal

local function list(path, members, lines)
    for name, member in pairs(members) do
        local place = path .. "." .. name
        if type(member) == "table" and name ~= "original" and name ~= "null" then
            list(place, member, lines)
        elseif type(member) == "function" then
            local parameters = {}
            for index = 1, getinfo(member, "u").nparams do
                parameters[index] = getlocal(member, index)
            end
            lines[#lines + 1] = place .. "(" .. table.concat(parameters, ", ") .. ")"
        end
    end
end

function envoy.sdk_functions()
    local lines = {}
    list("envoy", envoy, lines)
    for _, line in ipairs(lines) do
        envoy.logInfo(line)
    end
end
