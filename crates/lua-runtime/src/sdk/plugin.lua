-- Loads the plugin's files and finds its handlers; checks and takes in configurations.
local core, body, config, metric, sandbox, strings, envoy_filter, load_text, seal = ...
local call, host, text = core.call, core.host, core.text
local type, error, pcall, pairs, ipairs, tostring = type, error, pcall, core.pairs, core.ipairs, tostring
local gsub, gmatch, find, concat = string.gsub, string.gmatch, string.find, table.concat
local getinfo, sub = debug.getinfo, string.sub
local host_file = host.file
local result, argument, describe = core.result, core.argument, core.describe
local encode_schema = core.encode_schema

local plugin = {}
local folder
-- Chunks by file, compiled before the first of them runs.
local chunks = {}
-- What `require` has loaded, by the module's name.
local modules = {}
local LOADING = {}

local VALIDATE_OK, VALIDATE_FAIL = 0, 1
local base_validator, route_validator
local handler, on_configure
-- What scripts of Envoy's Lua filter need, for a plugin that looks like one.
local filter

-- `file:line` of the function that called the one that asks.
local function caller_place()
    local info = getinfo(3, "Sl")
    return info and info.short_src .. ":" .. info.currentline .. ": " or ""
end

local rider_config = {
    VALIDATE_OK = VALIDATE_OK,
    VALIDATE_FAIL = VALIDATE_FAIL,
    register_config_validator = function(base, route)
        for _, validator in ipairs({ base or false, route or false }) do
            if validator and type(validator) ~= "function" then
                error("register_config_validator takes functions", 2)
            end
        end
        base_validator = base or base_validator
        route_validator = route or route_validator
    end,
}

local rider_validator = {
    register_validator = function(base_schema, route_schema)
        local place = caller_place()
        for kind, schema in pairs({ [2] = base_schema, [3] = route_schema }) do
            if type(schema) ~= "table" then
                error("register_validator takes JSON Schemas as tables", 2)
            end
            local document, problem = encode_schema(schema)
            if not document then
                error("the schema is none: " .. problem, 2)
            end
            result(kind, document)
            result(kind + 2, place)
        end
    end,
}

modules["rider"] = { version = "1.0.0" }
modules["rider.v1"] = modules["rider"]
modules["rider.v2"] = { version = "2.0.0" }
modules["rider.config"] = rider_config
modules["rider.v2.config"] = rider_config
modules["rider.json_validator"] = rider_validator

-- What `require` answers for LuaJIT's own libraries, where the plugin has no file of that name: the sandbox's tables.
local libraries = { ["table.new"] = strings.new_table, ["table.clear"] = strings.clear_table }
for _, name in ipairs({ "bit", "coroutine", "math", "os", "string", "table" }) do
    libraries[name] = sandbox[name]
end

local function file_of(name)
    if host_file(call, name, #name) == 1 then
        return text(call.data, call.length)
    end
end

local function compile(name)
    local source = file_of(name)
    if not source then
        return nil
    end
    local chunk, problem = load_text(source, "@" .. folder .. "/" .. name, sandbox)
    if not chunk then
        if not find(problem, folder .. "/" .. name, 1, true) then
            problem = folder .. "/" .. name .. ": " .. problem .. "; only text is loaded, no bytecode"
        end
        error(problem, 0)
    end
    metric.define_literals(source)
    if find(source, "envoy_on_re", 1, true) then
        filter = filter or envoy_filter()
    end
    return chunk
end

function sandbox.require(name)
    if type(name) ~= "string" then
        error("require takes a module's name", 2)
    end
    local present = modules[name]
    if present == LOADING then
        error("module " .. name .. " requires itself, perhaps through others", 2)
    elseif present ~= nil then
        return present
    end
    local path = gsub(name, "%.", "/")
    for _, file in ipairs({ path .. ".lua", path .. "/init.lua" }) do
        local chunk = chunks[file]
        if chunk then
            modules[name] = LOADING
            local value = chunk(name)
            if value == nil then
                value = true
            end
            modules[name] = value
            return value
        end
    end
    local library = libraries[name]
    if library then
        modules[name] = library
        return library
    end
    error("module " .. name .. " not found: the plugin has neither " .. path .. ".lua nor " .. path
        .. "/init.lua; beside its own files there are rider, rider.v2, rider.config, "
        .. "rider.json_validator, bit, coroutine, math, os, string, table, table.new and table.clear", 2)
end

local NAMES = {
    "on_request_header", "on_request_body", "on_request_trailer", "on_response_header",
    "on_response_body", "on_response_trailer", "on_log",
}
local KNOWN = { on_configure = true, on_request = true, on_response = true }
for _, name in ipairs(NAMES) do
    KNOWN[name] = true
end

-- Arguments: the folder, the entry, then every file's name. Answers the handler table and its seven
-- handlers, `false` where there is none.
function plugin.load()
    folder = argument(0)
    local entry = argument(1)
    local index = 2
    while true do
        local name = argument(index)
        if not name then
            break
        end
        chunks[name] = compile(name)
        index = index + 1
    end
    local main = chunks[entry]
    if not main then
        error(folder .. ": the plugin has no file " .. entry, 0)
    end
    if filter then
        for name in pairs(chunks) do
            filter.note(file_of(name), sandbox)
        end
    end
    seal()
    handler = main()
    local script, places
    if filter and handler == nil then
        script, places = filter.handlers(sandbox)
        handler = script and {}
    end
    if type(handler) ~= "table" then
        error(folder .. "/" .. entry .. ": the file must return its table of handlers, not "
            .. (handler == nil and "nothing" or "a " .. type(handler)), 0)
    end
    for name, value in pairs(handler) do
        if type(name) == "string" and type(value) == "function" and not KNOWN[name]
            and (find(name, "^on_req") or find(name, "^on_resp") or find(name, "^on_conf")
                or find(name, "^on_log")) then
            local info = getinfo(value, "S")
            error(info.short_src .. ":" .. info.linedefined .. ": there is no handler " .. name
                .. "; handlers are " .. concat(NAMES, ", ") .. " and on_configure", 0)
        end
    end
    local found, any = {}, false
    for i, name in ipairs(NAMES) do
        local value = handler[name]
        if value ~= nil and type(value) ~= "function" then
            error(folder .. "/" .. entry .. ": " .. name .. " must be a function, not a "
                .. type(value), 0)
        end
        found[i] = value or false
    end
    if script then
        found[1], found[4] = script[1] or false, script[4] or false
        if filter.streams then
            for i = 1, 4, 3 do
                -- Their coroutines go on with these parts; there is no handler to call.
                found[i + 1], found[i + 2] = found[i], found[i]
            end
            result(6, "1")
        end
    elseif handler.version ~= "v2" and (handler.on_request or handler.on_response) then
        body.use_version_1()
        found[1] = handler.on_request or found[1]
        found[4] = handler.on_response or found[4]
    end
    local mask = ""
    if not script then
        -- Where a message has no body, the host calls the body's handler after that of the headers.
        for i = 1, 4, 3 do
            if found[i + 1] and not found[i] then
                found[i] = function() end
            end
        end
    end
    for i = 1, #NAMES do
        any = any or found[i]
        if found[i] then
            local info = getinfo(places and places[i <= 3 and 1 or 4] or found[i], "S")
            result(10 + i, info.short_src .. ":" .. info.linedefined .. ": ")
        end
        mask = mask .. (found[i] and "1" or "0")
    end
    if not any then
        error(folder .. "/" .. entry .. ": the table of handlers has none; it needs at least one of "
            .. concat(NAMES, ", "), 0)
    end
    result(1, mask)
    -- Read once: a handler that sets it later must not have it run on a worker.
    on_configure = handler.on_configure
    if on_configure then
        result(7, "")
    end
    return handler, found[1], found[2], found[3], found[4], found[5], found[6], found[7]
end

local function refusal(run, reason)
    local info = getinfo(run, "S")
    return info.short_src .. ":" .. info.linedefined .. ": " .. describe(reason)
end

local function validate(validator, part)
    local answer, reason = validator(part)
    if answer ~= VALIDATE_OK then
        error(refusal(validator, reason or "the configuration is refused"), 0)
    end
end

-- Takes a configuration in. Arguments: the effective document, the gateway's, the route's; the latter
-- two may be missing, which an empty text says. `check` is 1 where validators run.
function plugin.configure(id, check)
    local effective, base, route = argument(0), argument(1), argument(2)
    local entry = config.load(id, effective, base ~= "" and base or nil, route ~= "" and route or nil)
    if check == 1 then
        if base_validator and entry.base ~= nil then
            validate(base_validator, entry.base)
        end
        if route_validator and entry.route ~= nil then
            validate(route_validator, entry.route)
        end
    end
    if on_configure then
        local answer, reason = on_configure(handler, entry.effective)
        if answer == false or answer == nil and reason ~= nil then
            error(refusal(on_configure, reason or "the configuration is refused"), 0)
        end
    end
end

return plugin
