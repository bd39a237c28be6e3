-- Headers and trailers, query parameters.
local core, envoy = ...
local call, host, text = core.call, core.host, core.text
local fail, expect, to_text = core.fail, core.expect, core.to_text
local type, pairs, ipairs, error = type, core.pairs, core.ipairs, error

local host_header, host_header_count, host_headers = host.header, host.header_count, host.headers
local host_set, host_add, host_remove = host.set_header, host.add_header, host.remove_header
local host_stage, host_stage_clear, host_replace = host.stage, host.stage_clear, host.replace_headers
local host_query, host_clear_route_cache = host.query, host.clear_route_cache

-- The pairs that the host shows, as a table: a name with several values has a table of them.
local function take_pairs(count)
    local taken = {}
    local list = call.pairs
    for i = 0, count - 1 do
        local entry = list[i]
        local name = text(entry.name, entry.name_length)
        local value = text(entry.value, entry.value_length)
        local present = taken[name]
        if present == nil then
            taken[name] = value
        elseif type(present) == "table" then
            present[#present + 1] = value
        else
            taken[name] = { present, value }
        end
    end
    return taken
end
core.take_pairs = take_pairs

-- Stages a table of names to values (a value may be a table of values). `what` they are called.
function core.stage_pairs(pairs_by_name, what)
    host_stage_clear(call)
    for name, value in pairs(pairs_by_name) do
        if type(name) ~= "string" then
            expect(name, "string", "a " .. what .. "'s name", 4)
        end
        if type(value) == "table" then
            for _, one in ipairs(value) do
                one = to_text(one, "the value of " .. what .. " " .. name, 4)
                local answer = host_stage(call, name, #name, one, #one)
                if answer < 0 then
                    fail(answer, 3)
                end
            end
        else
            if type(value) ~= "string" then
                value = to_text(value, "the value of " .. what .. " " .. name, 4)
            end
            local answer = host_stage(call, name, #name, value, #value)
            if answer < 0 then
                fail(answer, 3)
            end
        end
    end
end
local stage_pairs = core.stage_pairs

local function absent(what)
    error("there are no " .. what .. " in this phase", 3)
end

-- The functions for one map of headers. Each is closed over the map's number, so that a trace holds
-- it as a constant.
local function publish(target, map, noun, what)
    target["get_" .. noun] = function(name)
        if type(name) ~= "string" then
            expect(name, "string", "the header's name")
        end
        local answer = host_header(call, map, name, #name, 0)
        if answer == 1 then
            return text(call.data, call.length)
        elseif answer < 0 then
            fail(answer)
        end
        return nil
    end

    target["get_" .. noun .. "_index"] = function(name, index)
        if type(name) ~= "string" then
            expect(name, "string", "the header's name")
        end
        if type(index) ~= "number" then
            expect(index, "number", "the index")
        end
        local answer = host_header(call, map, name, #name, index)
        if answer == 1 then
            return text(call.data, call.length)
        elseif answer < 0 then
            fail(answer)
        end
        return nil
    end

    target["get_" .. noun .. "_size"] = function(name)
        if type(name) ~= "string" then
            expect(name, "string", "the header's name")
        end
        local answer = host_header_count(call, map, name, #name)
        if answer < 0 then
            fail(answer)
        end
        return answer
    end

    target["get_" .. noun .. "s"] = function()
        local count = host_headers(call, map)
        if count < 0 then
            fail(count)
        end
        return take_pairs(count)
    end

    target["get_" .. noun .. "_map_size"] = function()
        local count = host_headers(call, map)
        if count < 0 then
            fail(count)
        end
        return count
    end

    target["set_" .. noun] = function(name, value)
        if type(name) ~= "string" then
            expect(name, "string", "the header's name")
        end
        if type(value) ~= "string" then
            value = to_text(value, "the header's value")
        end
        local answer = host_set(call, map, name, #name, value, #value)
        if answer < 0 then
            fail(answer)
        elseif answer == 0 then
            absent(what)
        end
    end

    target["add_" .. noun] = function(name, value)
        if type(name) ~= "string" then
            expect(name, "string", "the header's name")
        end
        if type(value) ~= "string" then
            value = to_text(value, "the header's value")
        end
        local answer = host_add(call, map, name, #name, value, #value)
        if answer < 0 then
            fail(answer)
        elseif answer == 0 then
            absent(what)
        end
    end

    local function clear(name)
        if type(name) ~= "string" then
            expect(name, "string", "the header's name")
        end
        local answer = host_remove(call, map, name, #name)
        if answer < 0 then
            fail(answer)
        elseif answer == 0 then
            absent(what)
        end
    end
    target["clear_" .. noun] = clear
    target["remove_" .. noun] = clear

    target["set_" .. noun .. "s"] = function(headers)
        if type(headers) ~= "table" then
            expect(headers, "table", "the headers")
        end
        stage_pairs(headers, "header")
        local answer = host_replace(call, map)
        if answer < 0 then
            fail(answer)
        elseif answer == 0 then
            absent(what)
        end
    end
end

publish(envoy.req, 0, "header", "request headers")
publish(envoy.resp, 1, "header", "response headers")
publish(envoy.req, 2, "trailer", "request trailers")
publish(envoy.resp, 3, "trailer", "response trailers")

function envoy.req.get_query_parameters(max_args)
    if max_args == nil then
        max_args = 100
    elseif type(max_args) ~= "number" then
        expect(max_args, "number", "max_args")
    elseif not (max_args >= 1 and max_args <= 10000) then
        error("max_args must be from 1 to 10000", 2)
    end
    local count = host_query(call, max_args)
    if count < 0 then
        fail(count)
    end
    return take_pairs(count)
end

function envoy.req.clear_route_cache()
    local answer = host_clear_route_cache(call)
    if answer == 0 then
        error("the request is on its way, and its route cannot change any more; call this from "
            .. "on_request_header, or from on_request_body with `body: whole` in plugin.yaml", 2)
    elseif answer < 0 then
        fail(answer)
    end
end
