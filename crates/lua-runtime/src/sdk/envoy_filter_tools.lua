-- What a handle of Envoy's Lua filter offers beside the stream: statistics, clocks, Base64, signatures.
local core, filter, envoy = ...
local call, host, fail = core.call, core.host, core.fail
local type, error, tonumber, tostring, setmetatable = type, error, tonumber, tostring, setmetatable
local floor, format, sub, lower = math.floor, string.format, string.sub, string.lower
local object, refuse, to_string = filter.object, filter.refuse, filter.to_string
local host_now, host_now_micros = host.now, host.clock_micros

local facts = {}

-- Statistics.
local COUNTER, GAUGE, HISTOGRAM = 0, 1, 2
local UNITS = {
    ms = true, milliseconds = true, microseconds = true, nanoseconds = true, bytes = true,
    unspecified = true,
}
local define, increment = envoy.define_metric, envoy.increment_metric
local record, value_of = envoy.record_metric, envoy.get_metric

local function amount_of(value, name)
    if type(value) ~= "number" then
        refuse(1, name, "number", value, 4)
    end
    return value >= 0 and floor(value) or -floor(-value)
end

local function metric_id(kind, kind_name, name)
    if type(name) ~= "string" then
        name = to_string(name, 1, kind_name, 4)
    end
    local id = define(kind, name)
    if id < 0 then
        error(kind_name .. " " .. name .. " is not defined: write its name as a text in the script, "
            .. "as in stats():" .. kind_name .. '("requests")', 3)
    end
    return id
end

local makers = {
    [COUNTER] = function(id)
        return {
            inc = function() increment(id, 1) end,
            add = function(_, value)
                value = amount_of(value, "add")
                if value < 0 then
                    error("counter add amount must be non-negative", 2)
                end
                increment(id, value)
            end,
            value = function() return value_of(id) end,
        }
    end,
    [GAUGE] = function(id)
        return {
            inc = function() increment(id, 1) end,
            dec = function() increment(id, -1) end,
            add = function(_, value) increment(id, amount_of(value, "add")) end,
            sub = function(_, value) increment(id, -amount_of(value, "sub")) end,
            set = function(_, value) record(id, amount_of(value, "set")) end,
            value = function() return value_of(id) end,
        }
    end,
    [HISTOGRAM] = function(id)
        return {
            recordValue = function(_, value) record(id, amount_of(value, "recordValue")) end,
        }
    end,
}
-- What was made, by the metric's id.
local metrics = {}

local function metric_object(kind, kind_name, name)
    local id = metric_id(kind, kind_name, name)
    local made = metrics[id]
    if not made then
        made = object(makers[kind](id))
        metrics[id] = made
    end
    return made
end

local stats = object({
    counter = function(_, name) return (metric_object(COUNTER, "counter", name)) end,
    gauge = function(_, name) return (metric_object(GAUGE, "gauge", name)) end,
    histogram = function(_, name, unit)
        if unit ~= nil and not UNITS[unit] then
            error("invalid histogram unit '" .. tostring(unit) .. "', expected 'ms', 'milliseconds', "
                .. "'microseconds', 'nanoseconds', 'bytes', or 'unspecified'", 2)
        end
        return (metric_object(HISTOGRAM, "histogram", name))
    end,
})

-- Keys and signatures.
local import_key, verify_signature = envoy.crypto.import_public_key, envoy.crypto.verify_signature

local function bytes_of(value, length, number, name)
    if type(value) ~= "string" then
        value = to_string(value, number, name, 4)
    end
    if type(length) ~= "number" then
        refuse(number + 1, name, "number", length, 4)
    elseif not (length >= 0 and length <= #value) then
        error("bad argument #" .. number + 1 .. " to '" .. name .. "' (there are " .. #value .. " bytes)", 3)
    end
    return sub(value, 1, length)
end

local keys = setmetatable({}, { __mode = "k" })
local PublicKey = filter.class({ get = function(self) return keys[self] end })

function facts.importPublicKey(_, der, length)
    local key = import_key((bytes_of(der, length, 1, "importPublicKey")))
    local made = filter.instance(PublicKey)
    keys[made] = key
    return made
end

local DIGESTS = { sha1 = true, sha224 = true, sha256 = true, sha384 = true, sha512 = true }

-- Envoy takes the text that a key's `get()` answers; the key itself is taken here, too.
function facts.verifySignature(_, digest, key, signature, signature_length, data, data_length)
    if type(digest) ~= "string" then
        digest = to_string(digest, 1, "verifySignature")
    end
    if filter.is_object(key) and key.get then
        key = key:get()
    end
    if type(key) ~= "string" then
        refuse(2, "verifySignature", "string", key)
    end
    signature = bytes_of(signature, signature_length, 3, "verifySignature")
    data = bytes_of(data, data_length, 5, "verifySignature")
    local known = DIGESTS[lower(digest)]
    if known and verify_signature(lower(digest), key, signature, data) then
        return true, nil
    elseif not import_key(key) then
        error("invalid public key", 2)
    elseif not known then
        return false, digest .. " is not supported."
    end
    return false, "Failed to verify digest. Error code: 0"
end

-- Clocks.
local MILLISECOND, MICROSECOND = 0, 1

function facts.timestamp(_, resolution)
    if resolution ~= nil and tonumber(resolution) ~= MILLISECOND then
        error("timestamp format must be MILLISECOND.", 2)
    end
    if host_now(call) < 0 then
        fail(-2)
    end
    return call.number
end

function facts.timestampString(_, resolution)
    resolution = resolution == nil and MILLISECOND or tonumber(resolution)
    local answer
    if resolution == MILLISECOND then
        answer = host_now(call)
    elseif resolution == MICROSECOND then
        answer = host_now_micros(call)
    else
        error("timestamp format must be MILLISECOND or MICROSECOND.", 2)
    end
    if answer < 0 then
        fail(answer)
    end
    return format("%.0f", call.number)
end

local encode64, decode64 = envoy.base64.encode, envoy.base64.decode

function facts.base64Escape(_, value)
    if type(value) ~= "string" then
        value = to_string(value, 1, "base64Escape")
    end
    return encode64(value)
end

function facts.base64Decode(_, value)
    if type(value) ~= "string" then
        value = to_string(value, 1, "base64Decode")
    end
    return (decode64(value))
end

function facts.stats() return stats end

return facts
