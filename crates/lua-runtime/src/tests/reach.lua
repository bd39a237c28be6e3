-- Walks all values that a plugin can reach from its globals, by members, metatables and keys, and the results
-- and errors of each function that it finds on the way, called with arguments of every kind. Notes the kind of
-- each by its path. `names` are members to try on objects that hide theirs.
local names = ...
local envoy = envoy
local builtin_name = envoy.builtin_name
local type, next, pcall, tostring, rawequal, select = type, next, pcall, tostring, rawequal, select
local getmetatable, wrap, sort, concat = getmetatable, coroutine.wrap, table.sort, table.concat
local find, gmatch, insert, print = string.find, string.gmatch, table.insert, print
local load, error, setmetatable, ipairs, pairs = load, error, setmetatable, ipairs, pairs
local rawget, unpack = rawget, unpack
local log = envoy.logInfo

local DEEPEST = 12
local turns = 0
-- Ends a loop that calls it until it returns nothing.
local function now_and_then()
    turns = turns + 1
    return turns % 3 ~= 0 and "x" or nil
end
local ARGUMENTS = {
    {},
    { "x-one" },
    { "x-one", "x" },
    { "x", "[", "y" },
    { "dynamic", "x" },
    { 1, "name" },
    { 0 / 0, 1 / 0, -1 },
    { {} },
    { { "a" }, { "b" } },
    { { [":status"] = "200" }, "body" },
    { { cluster = "upstream", path = "/" } },
    { { type = "object" } },
    { now_and_then, function() error({}) end },
    { setmetatable({}, { __index = function() error("index") end, __tostring = function() return {} end }) },
    { true, false, 5, 5, 5 },
    { 100, function() end },
}

local found, seen, own, visit = {}, {}, {}, nil
local function is_the_walks(value)
    if (type(value) == "table" or type(value) == "function") and not own[value] then
        own[value] = true
        if type(value) == "table" then
            for _, member in next, value do
                is_the_walks(member)
            end
            is_the_walks(getmetatable(value))
        end
    end
end
is_the_walks(ARGUMENTS)

local function kind_of(value)
    local kind = type(value)
    local name = kind ~= "nil" and (kind == "function" or kind == "table") and builtin_name(value)
    return name and kind .. " of LuaJIT: " .. name or kind
end

-- In an order that is the same each time: what a call changes shows in those that follow.
local function sorted_keys(value)
    local keys = {}
    for key in next, value do
        insert(keys, key)
    end
    sort(keys, function(a, b) return type(a) .. tostring(a) < type(b) .. tostring(b) end)
    return keys
end

local function members(value, path, depth)
    for _, key in ipairs(sorted_keys(value)) do
        local member = rawget(value, key)
        local place = type(key) == "string" and "." .. key or "[" .. type(key) .. "]"
        if type(key) ~= "string" and type(key) ~= "number" then
            visit(key, path .. place .. ".key", depth)
        end
        visit(member, path .. place, depth)
    end
    local metatable = getmetatable(value)
    if type(metatable) == "table" then
        visit(metatable, path .. ".metatable", depth)
    elseif metatable ~= nil then
        -- An object that hides its methods.
        for _, name in ipairs(names) do
            local done, member = pcall(function() return value[name] end)
            if done and member ~= nil then
                visit(member, path .. ":" .. name, depth)
            end
        end
    end
end

local function results(path, depth, done, ...)
    local place = path .. (done and "()" or "() error")
    for index = 1, select("#", ...) do
        visit((select(index, ...)), place, depth)
    end
end

local function call_all(value, path, depth, owner)
    for _, given in ipairs(ARGUMENTS) do
        -- In a coroutine of the plugin's own, nothing can suspend the walk.
        results(path, depth, pcall(wrap(function() return value(unpack(given)) end)))
        if owner then
            results(path, depth, pcall(wrap(function() return value(owner, unpack(given)) end)))
        end
    end
end

function visit(value, path, depth, owner)
    if value ~= nil and own[value] then
        return
    end
    local kind = kind_of(value)
    found[path .. " " .. kind] = true
    if depth == DEEPEST or value == nil or seen[value] then
        return
    end
    if type(value) == "table" and kind == "table" then
        seen[value] = path
        members(value, path, depth + 1)
    elseif kind == "function" then
        seen[value] = path
        call_all(value, path, depth + 1, owner)
    end
end

local walk = {}

-- Leaves a value out.
walk.leave_out = is_the_walks

-- Walks from a value.
function walk.from(value, path)
    visit(value, path, 0)
end

-- Calls a function with these arguments, and walks its results or its error.
function walk.call(path, run, ...)
    results(path, 0, pcall(run, ...))
end

function walk.object(value, path)
    for _, name in ipairs(names) do
        local done, member = pcall(function() return value[name] end)
        if done and type(member) == "function" then
            visit(member, path .. ":" .. name, 0, value)
        end
    end
    visit(value, path, 0)
end

-- Builtins whose results lead on.
function walk.builtins(loading)
    walk.call("pairs", pairs, {})
    walk.call("ipairs", ipairs, {})
    walk.call("string.gmatch", gmatch, "a", "a")
    walk.call("load", load, "return _G")
    walk.call("load", load, "return _G, ...", "name", "t", nil)
    walk.call("load", load, "syntax error")
    for _, environment in ipairs({ 5, "x", true, false, function() end, coroutine.create(print), 1LL }) do
        walk.call("load in " .. type(environment), load, "return _G", "name", "t", environment)
    end
    walk.call("load of a function", load, function() error({ 1 }) end)
    walk.call("loadstring", loadstring, "return _G")
    walk.call("loadstring", loadstring, "\27LJ")
    for _, text in ipairs({ "return _G", "return getfenv and getfenv(1) or _G" }) do
        walk.call("loaded", load(text))
        walk.call("loaded", loadstring(text))
    end
    walk.call("xpcall", xpcall, function() error({}) end, function(...) return ... end)
    walk.call("error of an index", function() return (nil)[1] end)
    walk.call("error of the memory", function() error(select(2, pcall(string.rep, "x", -1))) end)
    walk.call("metatable of a string", getmetatable, "")
    walk.call("metatable of a number", getmetatable, 1LL)
    walk.call("metatable of a function", getmetatable, print)
    walk.call("coroutine.running", coroutine.running)
    walk.call("require", require, "string")
    if not loading then
        -- What is registered while the plugin loads counts.
        walk.call("require", require, "rider.config")
        walk.call("require", require, "rider.json_validator")
    end
    walk.call("member of a string", function() return ("").dump end)
end

function walk.report()
    local lines = {}
    for line in pairs(found) do
        insert(lines, line)
    end
    -- Another phase begins anew.
    found, seen = {}, {}
    sort(lines)
    for _, line in ipairs(lines) do
        log("walk " .. line)
    end
end

is_the_walks(walk)

return walk
