-- What a handle of Envoy's Lua filter tells of the stream and its connections: metadata, stream info, TLS,
-- filter state.
--
-- The trap: what Envoy does not show to modules must not look like "there is none". A fact on which
-- decisions rest raises an error; what scripts have to expect to be missing is nil, with a warning.
local core, filter, envoy, metadata = ...
local call, host, text, fail = core.call, core.host, core.text, core.fail
local type, error, pairs, tonumber = type, error, pairs, tonumber
local sub, find, char, byte, floor = string.sub, string.find, string.char, string.byte, math.floor
local object, refuse, to_string, never = filter.object, filter.refuse, filter.to_string, filter.never
local attribute = envoy.attribute
local host_clear_route_cache, host_override_host = host.clear_route_cache, host.override_host

local virtual_host = object({ metadata = function() return metadata.virtual_host end })
local route = object({ metadata = function() return metadata.route end })

-- TLS.
local Ssl = {}

local function text_fact(name, attribute_name)
    Ssl[name] = function()
        return attribute(attribute_name) or ""
    end
end
text_fact("sha256PeerCertificateDigest", "connection.sha256_peer_certificate_digest")
text_fact("subjectPeerCertificate", "connection.subject_peer_certificate")
text_fact("subjectLocalCertificate", "connection.subject_local_certificate")
text_fact("tlsVersion", "connection.tls_version")

-- Envoy shows modules the first of each.
local function list_fact(name, attribute_name)
    Ssl[name] = function()
        return { attribute(attribute_name) }
    end
end
list_fact("uriSanPeerCertificate", "connection.uri_san_peer_certificate")
list_fact("uriSanLocalCertificate", "connection.uri_san_local_certificate")
list_fact("dnsSansPeerCertificate", "connection.dns_san_peer_certificate")
list_fact("dnsSansLocalCertificate", "connection.dns_san_local_certificate")

function Ssl.peerCertificatePresented()
    return attribute("connection.mtls") == true
end

for _, name in pairs({
    "peerCertificateValidated", "serialNumberPeerCertificate", "serialNumberPeerCertificateIssuer",
    "sha256PeerCertificateIssuerDigest", "issuerPeerCertificate",
    "urlEncodedPemEncodedPeerCertificate", "urlEncodedPemEncodedPeerCertificateChain",
    "oidsPeerCertificate", "oidsLocalCertificate", "validFromPeerCertificate",
    "expirationPeerCertificate", "sessionId", "ciphersuiteId", "ciphersuiteString",
}) do
    Ssl[name] = function()
        error(name .. " is not supported: Envoy does not show it to modules; where the gateway asks "
            .. "for client certificates, `x-forwarded-client-cert` can carry it", 2)
    end
end

-- Whether it is one of the hexadecimal digits; patterns are not compiled.
local function is_digit(code)
    return code and (code >= 48 and code <= 57 or code >= 65 and code <= 70 or code >= 97 and code <= 102)
end

-- The values of one attribute type in a name as RFC 2253 writes it, which is the last one first.
local function name_values(name, wanted)
    local values, at, length = {}, 1, #name
    while at <= length do
        local equals = find(name, "=", at, true)
        if not equals then
            break
        end
        local kind, value = sub(name, at, equals - 1), ""
        at = equals + 1
        while at <= length do
            local character = sub(name, at, at)
            if character == "," or character == "+" then
                break
            elseif character == "\\" then
                local code = tonumber(sub(name, at + 1, at + 2), 16)
                if code and is_digit(byte(name, at + 1)) and is_digit(byte(name, at + 2)) then
                    value, at = value .. char(code), at + 3
                else
                    value, at = value .. sub(name, at + 1, at + 1), at + 2
                end
            else
                value, at = value .. character, at + 1
            end
        end
        if kind == wanted then
            values[#values + 1] = value
        end
        at = at + 1
    end
    local count = #values
    for index = 1, floor(count / 2) do
        local other = count + 1 - index
        values[index], values[other] = values[other], values[index]
    end
    return values
end
filter.name_values = name_values

local ParsedName = {
    commonName = function()
        local values = name_values(attribute("connection.subject_peer_certificate") or "", "CN")
        return values[#values] or ""
    end,
    organizationName = function()
        return name_values(attribute("connection.subject_peer_certificate") or "", "O")
    end,
}
local parsed_name = object(ParsedName)

function Ssl.parsedSubjectPeerCertificate()
    if attribute("connection.mtls") then
        return parsed_name
    end
    return nil
end

local ssl = object(Ssl)
local function downstream_ssl()
    if attribute("connection.mtls") == nil then
        return nil
    end
    return ssl
end
local connection = object({ ssl = downstream_ssl })

-- Filter state.
local FilterState = {}
local get_state, set_state = envoy.filter_state.get, envoy.filter_state.set
local set_typed_state = envoy.filter_state.set_typed

function FilterState.get(_, name, field)
    if type(name) ~= "string" then
        name = to_string(name, 1, "get")
    end
    local value = get_state(name)
    if value ~= nil and field ~= nil then
        error("fields of filter state are not supported: Envoy does not show them to modules", 2)
    end
    return value
end

function FilterState.set(_, name, factory, value)
    if type(name) ~= "string" then
        name = to_string(name, 1, "set")
    end
    if type(factory) ~= "string" then
        factory = to_string(factory, 2, "set")
    end
    if type(value) ~= "string" then
        value = to_string(value, 3, "set")
    end
    if factory == "envoy.string" then
        set_state(name, value)
    elseif factory == name then
        set_typed_state(name, value)
    else
        error("'" .. factory .. "' makes only objects of its own name here, and 'envoy.string' makes "
            .. "texts of any name", 2)
    end
end
local filter_state = object(FilterState)

-- Stream info.
local Info = {}
local function info_fact(name, attribute_name)
    Info[name] = function()
        return attribute(attribute_name) or ""
    end
end
info_fact("protocol", "request.protocol")
info_fact("routeName", "xds.route_name")
info_fact("downstreamLocalAddress", "destination.address")
info_fact("downstreamDirectLocalAddress", "destination.address")
info_fact("downstreamRemoteAddress", "source.address")
info_fact("downstreamDirectRemoteAddress", "source.direct_address")
info_fact("requestedServerName", "connection.requested_server_name")

-- The gateway configures none.
function Info.virtualClusterName()
    return ""
end

function Info.dynamicMetadata()
    return metadata.dynamic
end

function Info.dynamicTypedMetadata(_, name)
    if type(name) ~= "string" then
        to_string(name, 1, "dynamicTypedMetadata")
    end
    never("dynamicTypedMetadata()")
    return nil
end

function Info.filterState()
    return filter_state
end

Info.downstreamSslConnection = downstream_ssl

function Info.drainConnectionUponCompletion()
    error("drainConnectionUponCompletion is not supported: Envoy does not offer it to modules", 2)
end

local info = object(Info)
local connection_info = object({
    dynamicMetadata = function() return metadata.connection end,
    dynamicTypedMetadata = Info.dynamicTypedMetadata,
})

local facts = {}

function facts.metadata() return metadata.route end
function facts.virtualHost() return virtual_host end
function facts.route() return route end
function facts.streamInfo() return info end
function facts.connection() return connection end
function facts.connectionStreamInfo() return connection_info end
function facts.filterContext() return metadata.context end

function facts.setUpstreamOverrideHost(_, address, strict)
    if type(address) ~= "string" then
        address = to_string(address, 1, "setUpstreamOverrideHost")
    end
    if strict ~= nil and type(strict) ~= "boolean" then
        refuse(2, "setUpstreamOverrideHost", "boolean", strict)
    end
    local answer = host_override_host(call, address, #address, strict and 1 or 0)
    if answer == -4 then
        error(text(call.data, call.length), 2)
    elseif answer < 0 then
        fail(answer)
    end
end

function facts.clearRouteCache()
    local answer = host_clear_route_cache(call)
    if answer < 0 then
        fail(answer)
    end
end

return facts
