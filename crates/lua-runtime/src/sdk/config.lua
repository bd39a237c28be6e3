-- Configurations: each is decoded once per VM and kept by its id, until the host says that it is
-- over. All streams see the same tables, which refuse new members.
local core, json = ...
local call = core.call
local error = error

local config = {}
local loaded = {}

-- What on_configure sees: there is no stream while it runs.
local configuring

function config.load(id, effective, base, route)
    local entry = { effective = json.decode_frozen(effective) }
    if base then
        entry.base = base == effective and entry.effective or json.decode_frozen(base)
    end
    if route then
        entry.route = json.decode_frozen(route)
    end
    loaded[id] = entry
    configuring = entry
    return entry
end

function config.unload(id)
    loaded[id] = nil
end

local function outside(what)
    if not configuring then
        error(what .. ": the configuration is known in handlers and in on_configure, not while the "
            .. "plugin loads", 3)
    end
    return configuring
end

function config.publish(envoy)
    function envoy.config()
        local entry = call.phase < 0 and outside("envoy.config") or loaded[call.config]
        return entry.effective
    end
    function envoy.get_base_config()
        local entry = call.phase < 0 and outside("envoy.get_base_config") or loaded[call.config]
        return entry.base
    end
    function envoy.get_route_config()
        local entry = call.phase < 0 and outside("envoy.get_route_config") or loaded[call.config]
        return entry.route
    end
end

return config
