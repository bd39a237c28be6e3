-- The stream: its shared table, what is known about it, metadata, logs.
local core, envoy = ...
local call, host, text = core.call, core.host, core.text
local fail, expect, to_text = core.fail, core.expect, core.to_text
local type, error, setmetatable, tostring, next, rawset = type, error, setmetatable, tostring, next, rawset
local pairs = pairs
local host_index, host_attribute = host.stream_index, host.attribute
local host_attribute_number, host_timing = host.attribute_number, host.timing
local host_now, host_start_time = host.now, host.start_time
local host_log, host_log_enabled, host_file_log = host.log, host.log_enabled, host.file_log

-- Shared tables by the number of the stream's entry.
local shared = {}

local ENDED = {
    __index = function() error("envoy.stream.shared was used after its stream had ended", 2) end,
    __newindex = function() error("envoy.stream.shared was used after its stream had ended", 2) end,
    __metatable = false,
}

local function current(level)
    local index = host_index(call)
    if index < 0 then
        fail(index, level)
    end
    local own = shared[index]
    if own == nil then
        own = {}
        shared[index] = own
    end
    return own
end

-- What a file that keeps `envoy.stream.shared` while it loads gets: the table of whichever stream is
-- being served.
local forward = setmetatable({}, {
    __index = function(_, key) return current(2)[key] end,
    __newindex = function(_, key, value) current(2)[key] = value end,
    __metatable = false,
})

setmetatable(envoy.stream, {
    __index = function(_, key)
        if key == "shared" then
            if call.phase < 0 then
                return forward
            end
            return (current(2))
        end
        return nil
    end,
})

local stream = {}

-- Ends a stream's table: who still holds it finds it empty, and is told.
function stream.close(index)
    local own = shared[index]
    if own ~= nil then
        shared[index] = nil
        for key in next, own do
            rawset(own, key, nil)
        end
        setmetatable(own, ENDED)
    end
end

-- Attributes by Envoy's names; their numbers are asked for once.
local numbers = {}

local function number_of(name)
    if type(name) ~= "string" then
        expect(name, "string", "the attribute's name", 4)
    end
    local number = host_attribute_number(call, name, #name)
    if number < 0 then
        error(text(call.data, call.length), 3)
    end
    numbers[name] = number
    return number
end

local function read_attribute(number)
    local answer = host_attribute(call, number)
    if answer == 1 then
        return text(call.data, call.length)
    elseif answer == 2 then
        return call.number
    elseif answer == 3 then
        return call.number ~= 0
    elseif answer < 0 then
        fail(answer, 2)
    end
    return nil
end

function envoy.attribute(name)
    return (read_attribute(numbers[name] or number_of(name)))
end

for name, attribute in pairs({
    downstream_remote_address = "source.address",
    downstream_direct_remote_address = "source.direct_address",
    downstream_local_address = "destination.address",
    upstream_host = "upstream.address",
    upstream_cluster = "xds.cluster_name",
    upstream_local_address = "upstream.local_address",
    route_name = "xds.route_name",
    protocol = "request.protocol",
    request_id = "request.id",
    requested_server_name = "connection.requested_server_name",
    response_code_details = "response.code_details",
    duration = "request.duration",
}) do
    local number = number_of(attribute)
    envoy.streaminfo[name] = function()
        return (read_attribute(number))
    end
end
local attempt_count = number_of("upstream.request_attempt_count")
function envoy.streaminfo.attempt_count()
    local count = read_attribute(attempt_count)
    -- Envoy has 0 until it asks the upstream.
    if count ~= 0 then
        return count
    end
    return nil
end

-- TLS. Each fact is one attribute; a plaintext connection has none of them.
local tls_facts = {}
for name, attribute in pairs({
    version = "connection.tls_version",
    server_name = "connection.requested_server_name",
    subject = "connection.subject_peer_certificate",
    uri_san = "connection.uri_san_peer_certificate",
    dns_san = "connection.dns_san_peer_certificate",
    sha256 = "connection.sha256_peer_certificate_digest",
    local_subject = "connection.subject_local_certificate",
    local_uri_san = "connection.uri_san_local_certificate",
    local_dns_san = "connection.dns_san_local_certificate",
}) do
    tls_facts[name] = number_of(attribute)
end
local PEER_PRESENTED = number_of("connection.mtls")

envoy.connection = {}

function envoy.connection.tls()
    local presented = read_attribute(PEER_PRESENTED)
    if presented == nil then
        return nil
    end
    return {
        peer_presented = presented,
        version = read_attribute(tls_facts.version),
        server_name = read_attribute(tls_facts.server_name),
        subject = read_attribute(tls_facts.subject),
        uri_san = read_attribute(tls_facts.uri_san),
        dns_san = read_attribute(tls_facts.dns_san),
        sha256 = read_attribute(tls_facts.sha256),
        local_subject = read_attribute(tls_facts.local_subject),
        local_uri_san = read_attribute(tls_facts.local_uri_san),
        local_dns_san = read_attribute(tls_facts.local_dns_san),
    }
end

local function moment(index)
    local time = call.tape[index].number
    if time >= 0 then
        return time
    end
    return nil
end

function envoy.streaminfo.timing()
    local answer = host_timing(call)
    if answer < 0 then
        fail(answer)
    end
    return {
        complete = moment(0),
        first_upstream_sent = moment(1),
        last_upstream_sent = moment(2),
        first_upstream_received = moment(3),
        last_upstream_received = moment(4),
        first_downstream_sent = moment(5),
        last_downstream_sent = moment(6),
    }
end

local host_response_code = host.response_code
function envoy.streaminfo.response_code()
    local code = host_response_code(call)
    if code < 0 then
        fail(code)
    end
    if code == 0 then
        return nil
    end
    return code
end

function envoy.streaminfo.start_time()
    local answer = host_start_time(call)
    if answer < 0 then
        fail(answer)
    end
    return call.number
end

local function now()
    local answer = host_now(call)
    if answer < 0 then
        fail(answer)
    end
    return call.number
end
envoy.streaminfo.current_time_milliseconds = now
envoy.nowms = now

-- Logs. While the plugin loads, and in on_configure, too.
for name, level in pairs({ logTrace = 0, logDebug = 1, logInfo = 2, logWarn = 3, logErr = 4 }) do
    envoy[name] = function(message)
        if type(message) ~= "string" then
            message = tostring(message)
        end
        if host_log_enabled(call, level) == 1 then
            host_log(call, level, message, #message)
        end
    end
end

function envoy.filelog(message)
    if type(message) ~= "string" then
        message = to_text(message, "the message")
    end
    host_file_log(call, message, #message)
end

return stream
