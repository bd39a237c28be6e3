-- Digests, signatures, comparison in constant time, hexadecimal digits, UUIDs.
local core, envoy = ...
local call, host, text = core.call, core.host, core.text
local expect, fail = core.expect, core.fail
local type = type
local pairs, error = pairs, error
local host_digest, host_hmac, host_equal = host.digest, host.hmac, host.equal
local host_import_key, host_verify = host.import_key, host.verify
local host_hex, host_unhex, host_uuid = host.hex_encode, host.hex_decode, host.uuid

local crypto = {}
envoy.crypto = crypto

local HASHES = { sha1 = 1, sha256 = 2, sha384 = 3, sha512 = 4 }

for name, which in pairs(HASHES) do
    crypto[name] = function(bytes)
        if type(bytes) ~= "string" then
            expect(bytes, "string", "what to digest")
        end
        local answer = host_digest(call, which, bytes, #bytes)
        if answer ~= 1 then
            fail(answer)
        end
        return text(call.data, call.length)
    end

    crypto["hmac_" .. name] = function(key, bytes)
        if type(key) ~= "string" then
            expect(key, "string", "the key")
        end
        if type(bytes) ~= "string" then
            expect(bytes, "string", "what to sign")
        end
        local answer = host_hmac(call, which, key, #key, bytes, #bytes)
        if answer ~= 1 then
            fail(answer)
        end
        return text(call.data, call.length)
    end
end

function crypto.import_public_key(key)
    if type(key) ~= "string" then
        expect(key, "string", "the key")
    end
    local answer = host_import_key(call, key, #key)
    if answer == 1 then
        return text(call.data, call.length)
    elseif answer ~= -4 then
        fail(answer)
    end
    return nil, text(call.data, call.length)
end

local SIGNED = { sha1 = true, sha224 = true, sha256 = true, sha384 = true, sha512 = true }

function crypto.verify_signature(hash, key, signature, bytes)
    if hash == nil then
        hash = ""
    elseif not SIGNED[hash] then
        error('the digest must be "sha1", "sha224", "sha256", "sha384", "sha512", or nil for Ed25519', 2)
    end
    if type(key) ~= "string" then
        expect(key, "string", "the key")
    end
    if type(signature) ~= "string" then
        expect(signature, "string", "the signature")
    end
    if type(bytes) ~= "string" then
        expect(bytes, "string", "what was signed")
    end
    local answer = host_verify(call, hash, #hash, key, #key, signature, #signature, bytes, #bytes)
    if answer == 1 then
        return true
    elseif answer == 0 then
        return false, "the signature does not match"
    elseif answer ~= -4 then
        fail(answer)
    end
    return false, text(call.data, call.length)
end

function crypto.constant_time_equals(first, second)
    if type(first) ~= "string" then
        expect(first, "string", "the first text")
    end
    if type(second) ~= "string" then
        expect(second, "string", "the second text")
    end
    local answer = host_equal(call, first, #first, second, #second)
    if answer < 0 then
        fail(answer)
    end
    return answer == 1
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
    local answer = host_unhex(call, digits, #digits)
    if answer == 1 then
        return text(call.data, call.length)
    elseif answer < 0 then
        fail(answer)
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
