-- Changes of headers, with values taken from the message.
--
-- A configuration is compiled once: each value becomes a list of literal texts and of functions that
-- look something up. What runs for a request is a loop over that list.

local handler = { version = "v2" }

-- Headers of the connection and of the message's framing, which belong to the proxy; and `host`, which is
-- another name of `:authority`.
local reserved = {
  ["connection"] = true, ["content-length"] = true, ["host"] = true, ["keep-alive"] = true,
  ["proxy-connection"] = true, ["te"] = true, ["trailer"] = true, ["transfer-encoding"] = true,
  ["upgrade"] = true,
}

-- How many bytes all values together may have that are filled in, for one message: about as much as Envoy
-- takes in the headers of one message.
local LONGEST = 60 * 1024

-- `envoy.req.get_query_parameters` reads no more.
local MOST_PARAMETERS = 10000

-- The IP address of `address:port`; IPv6 addresses come in brackets.
local function without_port(address)
  return address:match("^%[(.-)%]") or address:match("^(.*):%d+$") or address
end

-- What may stand alone in `${...}`.
local plain = {
  ["req.method"] = function()
    return envoy.req.get_header(":method")
  end,
  ["req.path"] = function()
    -- Without its query; that is what `req.query.name` is for.
    local path = envoy.req.get_header(":path")
    return path and path:match("^[^?#]*")
  end,
  ["req.host"] = function()
    return envoy.req.get_header(":authority")
  end,
  ["client.address"] = function()
    local address = envoy.streaminfo.downstream_remote_address()
    return address and without_port(address)
  end,
}

-- What is followed by a name of the user's choice.
local named = {
  ["req.header."] = function(name)
    return envoy.req.get_header(name)
  end,
  ["req.query."] = function(name)
    local value = envoy.req.get_query_parameters(MOST_PARAMETERS)[name]
    if type(value) == "table" then
      value = value[1]
    end
    if value == true then
      return ""
    end
    return value
  end,
  ["resp.header."] = function(name)
    return envoy.resp.get_header(name)
  end,
}

local known = "`${req.method}`, `${req.path}`, `${req.host}`, `${req.header.NAME}`, `${req.query.NAME}`, "
  .. "`${client.address}` and, for responses, `${resp.header.NAME}`"

-- The function that looks up what `${name}` stands for. `where` names the value for messages.
local function lookup(name, direction, where)
  if plain[name] then
    return plain[name]
  end
  for prefix, get in pairs(named) do
    local rest = name:sub(#prefix + 1)
    if name:sub(1, #prefix) == prefix and rest ~= "" then
      if prefix == "resp.header." and direction == "request" then
        error(where .. ": `${" .. name .. "}` is not known yet when a request passes", 0)
      end
      return function()
        return get(rest)
      end
    end
  end
  error(where .. ": `${" .. name .. "}` is unknown; there are " .. known, 0)
end

-- Turns `a ${b} c` into { "a ", function, " c" }.
local function compile_value(text, direction, where)
  local parts, position = {}, 1
  while true do
    local dollar = text:find("$", position, true)
    if not dollar then
      parts[#parts + 1] = text:sub(position)
      return parts
    end
    parts[#parts + 1] = text:sub(position, dollar - 1)
    local following = text:sub(dollar + 1, dollar + 1)
    if following == "$" then
      parts[#parts + 1] = "$"
      position = dollar + 2
    elseif following == "{" then
      local close = text:find("}", dollar, true)
      if not close then
        error(where .. ": `${` is not closed by `}`; a plain dollar is written `$$`", 0)
      end
      parts[#parts + 1] = lookup(text:sub(dollar + 2, close - 1), direction, where)
      position = close + 1
    else
      -- A dollar before anything else is a dollar.
      parts[#parts + 1] = "$"
      position = dollar + 1
    end
  end
end

local function sorted_names(map)
  local names = {}
  for name in pairs(map or {}) do
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

-- Adds to `list` an entry { name, parts } for each value of a map of values or lists of values.
local function compile_map(list, map, direction, kind)
  for _, name in ipairs(sorted_names(map)) do
    local where = direction .. "." .. kind .. "." .. name
    if reserved[name:lower()] then
      error(where .. ": `" .. name:lower() .. "` is the proxy's, and cannot be changed", 0)
    end
    local values = map[name]
    if type(values) ~= "table" then
      values = { values }
    end
    for _, value in ipairs(values) do
      list[#list + 1] = { name = name:lower(), parts = compile_value(value, direction, where) }
    end
  end
end

local function compile_changes(changes, direction)
  if not changes then
    return nil
  end
  local compiled = { remove = {}, set = {}, append = {} }
  for index, name in ipairs(changes.remove or {}) do
    if reserved[name:lower()] then
      error(direction .. ".remove." .. index - 1 .. ": `" .. name .. "` is the proxy's, and cannot be changed", 0)
    end
    compiled.remove[index] = name:lower()
  end
  compile_map(compiled.set, changes.set, direction, "set")
  compile_map(compiled.append, changes.append, direction, "append")
  return compiled
end

-- Compiled forms, by configuration; a configuration that is gone takes its compiled form along.
local compiled = setmetatable({}, { __mode = "k" })

-- The value of parts for this message, and how many of its bytes were filled in; nil where these are more
-- than `left`.
local function render(parts, left)
  if #parts == 1 then
    return parts[1], 0
  end
  local texts, filled = {}, 0
  for index, part in ipairs(parts) do
    if type(part) == "function" then
      -- A query parameter may hold an encoded line break, which would begin a header of its own.
      part = (part() or ""):gsub("%c", "")
      filled = filled + #part
      if filled > left then
        return nil
      end
    end
    texts[index] = part
  end
  return table.concat(texts), filled
end

-- All values are made before anything changes, so that the order of changes does not matter to them. Returns
-- how many bytes are left for more values; nil where they were not enough.
local function render_all(list, values, left)
  for index, entry in ipairs(list) do
    local value, filled = render(entry.parts, left)
    if not value then
      return nil
    end
    values[index] = value
    left = left - filled
  end
  return left
end

-- Returns false, and changes nothing, where the values are too long.
local function apply(changes, message)
  local set, append = {}, {}
  local left = render_all(changes.set, set, LONGEST)
  if not left or not render_all(changes.append, append, left) then
    return false
  end
  for _, name in ipairs(changes.remove) do
    message.clear_header(name)
  end
  for index, entry in ipairs(changes.set) do
    if set[index] == "" then
      -- Envoy has no empty values here; and what a client sent must not pass for the value to be set.
      message.clear_header(entry.name)
    else
      message.set_header(entry.name, set[index])
    end
  end
  for index, entry in ipairs(changes.append) do
    if append[index] ~= "" then
      message.add_header(entry.name, append[index])
    end
  end
  return true
end

function handler:on_configure(config)
  compiled[config] = {
    request = compile_changes(config.request, "request"),
    response = compile_changes(config.response, "response"),
  }
end

function handler:on_request_header()
  local changes = compiled[envoy.config()].request
  if changes and not apply(changes, envoy.req) then
    envoy.respond(
      { [":status"] = "431", ["content-type"] = "text/plain" },
      "request header fields too large\n",
      "outrider.headers.too_large"
    )
  end
end

function handler:on_response_header()
  local changes = compiled[envoy.config()].response
  if changes and not apply(changes, envoy.resp) then
    envoy.logWarn("a response stays as it is: the values for its headers are longer than " .. LONGEST .. " bytes")
  end
end

return handler
