-- Puts the SDK together. Runs once per VM, before the plugin. What it returns are the functions that
-- the host calls, in the order of `Entry` in state.rs; the plugin reaches none of them.
local sources, declaration, call_address, host_address, seed, memory_budget, load_text = ...

local core = sources["=sdk/core.lua"](declaration, call_address, host_address, memory_budget)
local strings = sources["=sdk/strings.lua"](core)
local json = sources["=sdk/json.lua"](core)
local wait = sources["=sdk/wait.lua"](core)
local config = sources["=sdk/config.lua"](core, json)

local envoy = { req = {}, resp = {}, stream = {}, streaminfo = {} }
sources["=sdk/headers.lua"](core, envoy)
local body = sources["=sdk/body.lua"](core, wait, envoy)
local stream = sources["=sdk/stream.lua"](core, envoy)
sources["=sdk/metadata.lua"](core, envoy, json)
local metric = sources["=sdk/metric.lua"](core, envoy)
sources["=sdk/crypto.lua"](core, envoy)
sources["=sdk/time.lua"](core, envoy)
sources["=sdk/url.lua"](core, envoy, strings)
sources["=sdk/re.lua"](core, envoy)
sources["=sdk/json_schema.lua"](core, envoy)
sources["=sdk/shared.lua"](core, envoy)
wait.publish(envoy)
sources["=sdk/callout.lua"](core, wait, envoy)
local timer = sources["=sdk/timer.lua"](core, wait, envoy)
json.publish(envoy)
config.publish(envoy)

local sandbox = sources["=sdk/sandbox.lua"](core, wait, envoy, strings, load_text)

-- Made only for plugins that need it.
local filter
local function envoy_filter()
    filter = sources["=sdk/envoy_filter.lua"](core, wait, envoy, metric)
    local metadata = sources["=sdk/envoy_filter_metadata.lua"](core, filter, envoy)
    filter.complete(
        sources["=sdk/envoy_filter_facts.lua"](core, filter, envoy, metadata),
        sources["=sdk/envoy_filter_tools.lua"](core, filter, envoy),
        sources["=sdk/envoy_filter_calls.lua"](core, wait, filter))
    return filter
end

-- There in tests only.
local trace = sources["=sdk/trace.lua"]
if trace then
    trace(core, envoy, strings)
end

math.randomseed(seed)
local traceback, collect = debug.traceback, collectgarbage

-- LuaJIT's own globals and libraries. They are emptied before the first line of the plugin runs: a way to
-- them that the sandbox might leave open leads to empty tables. The SDK keeps the functions that it uses in
-- local variables.
local globals, registry = _G, debug.getregistry()
local next, rawset, type, setmetatable, error = next, rawset, type, setmetatable, error

local function empty(emptied)
    for name, value in next, emptied do
        rawset(emptied, name, nil)
        if type(value) == "table" then
            empty(value)
        end
    end
end

local function refuse_global(_, name)
    error("the SDK has no global " .. name)
end

local function seal()
    local loaded, preload = registry._LOADED, registry._PRELOAD
    -- LuaJIT finds the FFI's table of C functions that call back by a pointer that its collector does not follow. The
    -- library's functions keep that table alive, so they stay for as long as the VM, in a place that no plugin reaches.
    local kept = {}
    for name, value in next, loaded.ffi do
        kept[name] = value
    end
    registry.outrider_ffi = kept
    registry._LOADED, registry._PRELOAD = nil, nil
    empty(loaded)
    empty(preload)
    empty(globals)
    setmetatable(globals, { __newindex = refuse_global, __metatable = false })
end

local plugin = sources["=sdk/plugin.lua"](core, body, config, metric, sandbox, strings, envoy_filter, load_text,
    seal)

return {
    plugin.load,
    plugin.configure,
    config.unload,
    function(index)
        stream.close(index)
        timer.close(index)
        wait.close(index)
        if filter then
            filter.close(index)
        end
    end,
    function(value) core.result(0, core.describe(value)) end,
    function(thread) core.result(0, traceback(thread)) end,
    function() collect() end,
    timer.fire,
}
