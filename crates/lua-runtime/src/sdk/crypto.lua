-- Digests, comparison in constant time, hexadecimal digits, UUIDs.
local core, envoy = ...
local call, host, text = core.call, core.host, core.text
local expect, fail = core.expect, core.fail
local type = type
local host_sha256, host_hmac, host_equal = host.sha256, host.hmac_sha256, host.equal
local host_hex, host_unhex, host_uuid = host.hex_encode, host.hex_decode, host.uuid

local crypto = {}
envoy.crypto = crypto

function crypto.sha256(bytes)
    if type(bytes) ~= "string" then
        expect(bytes, "string", "what to digest")
    end
    local answer = host_sha256(call, bytes, #bytes)
    if answer ~= 1 then
        fail(answer)
    end
    return text(call.data, call.length)
end

function crypto.hmac_sha256(key, bytes)
    if type(key) ~= "string" then
        expect(key, "string", "the key")
    end
    if type(bytes) ~= "string" then
        expect(bytes, "string", "what to sign")
    end
    local answer = host_hmac(call, key, #key, bytes, #bytes)
    if answer ~= 1 then
        fail(answer)
    end
    return text(call.data, call.length)
end

function crypto.constant_time_equals(first, second)
    if type(first) ~= "string" then
        expect(first, "string", "the first text")
    end
    if type(second) ~= "string" then
        expect(second, "string", "the second text")
    end
    return host_equal(call, first, #first, second, #second) == 1
end

function crypto.hex(bytes)
    if type(bytes) ~= "string" then
        expect(bytes, "string", "what to encode")
    end
    local answer = host_hex(call, bytes, #bytes)
    if answer ~= 1 then
        fail(answer)
    end
    return text(call.data, call.length)
end

function crypto.unhex(digits)
    if type(digits) ~= "string" then
        expect(digits, "string", "what to decode")
    end
    if host_unhex(call, digits, #digits) == 1 then
        return text(call.data, call.length)
    end
    return nil, "not pairs of hexadecimal digits"
end

function envoy.uuid()
    local answer = host_uuid(call)
    if answer ~= 1 then
        fail(answer)
    end
    return text(call.data, call.length)
end
