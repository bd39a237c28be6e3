-- Metrics in the proxy's own statistics. They are defined while the plugin loads; afterwards a name
-- that was defined is found again by the same call.
local core, envoy = ...
local call, host = core.call, core.host
local fail, expect = core.fail, core.expect
local type, error, gmatch, pairs, tonumber = type, error, string.gmatch, pairs, tonumber
local host_define, host_add = host.metric_define, host.metric_add
local host_record, host_get = host.metric_record, host.metric_get

-- Kinds by id: 0 counter, 1 gauge, 2 histogram.
local kinds = {}

local function define(kind, name)
    local id = host_define(call, kind, name, #name)
    if id > 0 then
        kinds[id] = kind
    end
    return id
end

function envoy.define_metric(kind, name)
    if kind ~= 0 and kind ~= 1 and kind ~= 2 then
        error("the metric's type must be 0 (counter), 1 (gauge) or 2 (histogram)", 2)
    end
    if type(name) ~= "string" then
        expect(name, "string", "the metric's name")
    end
    local id = define(kind, name)
    if id > 0 then
        return id
    elseif id == 0 then
        return -1, "metric " .. name .. " cannot be defined: another type has the name, or there is "
            .. "no room for more metrics"
    end
    return -1, "metric " .. name .. " must be defined while the plugin loads: at the top of a file, "
        .. "or in on_configure"
end

local function check(id, level)
    local kind = kinds[id]
    if kind == nil then
        error("no metric has this id; ids come from envoy.define_metric", level + 1)
    end
    return kind
end

function envoy.increment_metric(id, amount)
    if type(amount) ~= "number" then
        if amount ~= nil then
            expect(amount, "number", "the amount")
        end
        amount = 1
    end
    local kind = check(id, 2)
    if kind == 2 then
        error("a histogram cannot be incremented; use envoy.record_metric", 2)
    elseif kind == 0 and not (amount >= 0) then
        error("a counter only grows", 2)
    end
    local answer = host_add(call, id, amount)
    if answer < 0 then
        fail(answer)
    end
end

function envoy.record_metric(id, value)
    if type(value) ~= "number" then
        expect(value, "number", "the value")
    end
    if not (value >= 0) then
        error("a metric's value cannot be negative", 2)
    end
    -- Recording to a counter adds, as it does in Rider.
    local answer = check(id, 2) == 0 and host_add(call, id, value) or host_record(call, id, value)
    if answer < 0 then
        fail(answer)
    end
end

function envoy.get_metric(id)
    if kinds[id] == nil then
        return -1
    end
    local answer = host_get(call, id)
    if answer < 0 then
        fail(answer)
    elseif answer == 0 then
        return -1
    end
    return call.number
end

local metric = {}

-- Defines what a file names literally. Rider's plugins define their metrics in the first call of a
-- handler, where it is too late here.
function metric.define_literals(source)
    for kind, name in gmatch(source, "define_metric%s*%(%s*([012])%s*,%s*[\"']([^\"'\\]+)[\"']") do
        define(tonumber(kind), name)
    end
end

-- The same for the names that a script of Envoy's Lua filter gives to `stats()`.
function metric.define_scoped(source)
    for kind, pattern in pairs({ [0] = "counter", [1] = "gauge", [2] = "histogram" }) do
        for name in gmatch(source, ":" .. pattern .. "%s*%(%s*[\"']([^\"'\\]+)[\"']") do
            define(kind, name)
        end
    end
end

return metric
