-- Authentication by a key that the client sends in a header, a query parameter or a cookie.
--
-- Keys are looked up by their digest: how long a look-up takes tells nothing about how much of a key
-- was guessed right, and many consumers cost no more than one.

local handler = { version = "v2" }

local sha256, equal = envoy.crypto.sha256, envoy.crypto.constant_time_equals
local byte = string.byte

-- The bytes that `%s` stands for.
local is_space = { [9] = true, [10] = true, [11] = true, [12] = true, [13] = true, [32] = true }

-- Headers of the connection and of the message's framing, which belong to the proxy; and `host`, which is
-- another name of `:authority`.
local reserved = {
  ["connection"] = true, ["content-length"] = true, ["host"] = true, ["keep-alive"] = true,
  ["proxy-connection"] = true, ["te"] = true, ["trailer"] = true, ["transfer-encoding"] = true,
  ["upgrade"] = true,
}

-- Compiled configurations; the key is weak, so each goes with its configuration.
local prepared = setmetatable({}, { __mode = "k" })

local function lowered(list)
  local lower = {}
  for index, name in ipairs(list or {}) do
    lower[index] = name:lower()
  end
  return lower
end

local function set_of(list)
  local set = {}
  for _, name in ipairs(list) do
    set[name] = true
  end
  return set
end

-- Consumers by the digest of their keys.
local function digests(consumers)
  local known, names = {}, {}
  for name in pairs(consumers) do
    names[#names + 1] = name
  end
  -- In a fixed order, so that a message does not depend on chance.
  table.sort(names)
  for _, name in ipairs(names) do
    local keys = consumers[name]
    if type(keys) == "string" then
      keys = { keys }
    end
    for _, key in ipairs(keys) do
      local digest = sha256(key)
      local other = known[digest]
      if other and other.name ~= name then
        error("consumers: `" .. other.name .. "` and `" .. name .. "` have the same key; each needs its own", 0)
      end
      known[digest] = { name = name, key = key }
    end
  end
  return known
end

function handler:on_configure(config)
  local headers = lowered(config.headers)
  if not (config.headers or config.query or config.cookies) then
    headers = { "x-api-key" }
  end
  if config.scheme and #headers == 0 then
    error("`scheme` has no meaning without `headers`; remove it", 0)
  end
  local consumer_header = config.consumer_header and config.consumer_header:lower()
  if reserved[consumer_header] then
    error("`consumer_header` cannot be `" .. consumer_header .. "`; choose another, for example x-consumer", 0)
  end
  for _, name in ipairs(headers) do
    if reserved[name] then
      error("`headers` cannot have `" .. name .. "`; choose another, for example x-api-key", 0)
    end
    if name == consumer_header then
      error("`consumer_header` cannot be a header that carries keys; choose another, for example x-consumer", 0)
    end
  end
  prepared[config] = {
    known = digests(config.consumers),
    headers = headers,
    query = set_of(config.query or {}),
    cookies = set_of(config.cookies or {}),
    scheme = config.scheme and config.scheme:lower(),
    consumer_header = consumer_header,
  }
end

-- The text without the spaces around it. A pattern such as `^%s*(.-)%s*$` takes time that grows with the
-- square of the length.
local function trimmed(text)
  local first, last = text:find("%S"), #text
  if not first then
    return ""
  end
  while is_space[byte(text, last)] do
    last = last - 1
  end
  return text:sub(first, last)
end

-- The key of a header's value, or nil where `scheme` is configured and the value has another one.
local function key_of(value, scheme)
  if not scheme then
    return value
  end
  local word, key = value:match("^(%S+) +(.*)$")
  if word and word:lower() == scheme then
    return trimmed(key)
  end
end

-- Name and value of one cookie (RFC 6265, section 5.2): split at the first `=`, without spaces around
-- either. A cookie without `=` has no name.
local function cookie_of(text)
  local equals = text:find("=", 1, true)
  if not equals then
    return "", trimmed(text)
  end
  return trimmed(text:sub(1, equals - 1)), trimmed(text:sub(equals + 1))
end

-- The name of a query parameter as it is meant: decoded, with `+` for a space.
local function decoded(text)
  return envoy.url.decode((text:gsub("+", " ")))
end

-- Path and query of the request. A `#` begins what is none of the upstream's business.
local function path_and_query()
  local path = envoy.req.get_header(":path") or ""
  return path:match("^([^?#]*)%??([^#]*)")
end

-- The keys in the request, at most two: more than one is wrong in any case. The second result says whether
-- there is one.
local function find_keys(setup)
  local found, carried = {}, false
  local function add(key)
    carried = true
    if #found < 2 then
      found[#found + 1] = key
    end
  end

  for _, name in ipairs(setup.headers) do
    for index = 0, envoy.req.get_header_size(name) - 1 do
      -- A value with another scheme is not a key.
      local key = key_of(envoy.req.get_header_index(name, index) or "", setup.scheme)
      if key then
        add(key)
      end
    end
  end

  if next(setup.query) then
    local _, query = path_and_query()
    for parameter in query:gmatch("[^&]+") do
      local name, value = parameter:match("^([^=]*)=?(.*)$")
      if setup.query[decoded(name)] then
        add(decoded(value))
      end
    end
  end

  if next(setup.cookies) then
    for index = 0, envoy.req.get_header_size("cookie") - 1 do
      local cookies = envoy.req.get_header_index("cookie", index) or ""
      for cookie in cookies:gmatch("[^;]+") do
        local name, value = cookie_of(cookie)
        if setup.cookies[name] then
          add(value)
        end
      end
    end
  end
  return found, carried
end

local function remove_from_header(name, scheme)
  local kept, removed = {}, false
  for index = 0, envoy.req.get_header_size(name) - 1 do
    local value = envoy.req.get_header_index(name, index) or ""
    if key_of(value, scheme) then
      removed = true
    else
      kept[#kept + 1] = value
    end
  end
  if removed then
    envoy.req.clear_header(name)
    for _, value in ipairs(kept) do
      envoy.req.add_header(name, value)
    end
  end
end

-- A path without a key stays as it is, to the byte: its query may be signed.
local function remove_from_query(names)
  local path, query = path_and_query()
  local kept, removed = {}, false
  for parameter in query:gmatch("[^&]+") do
    if names[decoded(parameter:match("^[^=]*"))] then
      removed = true
    else
      -- Not decoded: the upstream may decode in its own way.
      kept[#kept + 1] = parameter
    end
  end
  if removed then
    if #kept > 0 then
      path = path .. "?" .. table.concat(kept, "&")
    end
    envoy.req.set_header(":path", path)
  end
end

local function remove_from_cookies(names)
  local kept, removed = {}, false
  for index = 0, envoy.req.get_header_size("cookie") - 1 do
    local cookies = envoy.req.get_header_index("cookie", index) or ""
    for cookie in cookies:gmatch("[^;]+") do
      if names[cookie_of(cookie)] then
        removed = true
      else
        kept[#kept + 1] = trimmed(cookie)
      end
    end
  end
  if not removed then
    return
  end
  if #kept > 0 then
    envoy.req.set_header("cookie", table.concat(kept, "; "))
  else
    envoy.req.clear_header("cookie")
  end
end

local function hide(setup)
  for _, name in ipairs(setup.headers) do
    remove_from_header(name, setup.scheme)
  end
  if next(setup.query) then
    remove_from_query(setup.query)
  end
  if next(setup.cookies) then
    remove_from_cookies(setup.cookies)
  end
end

local function refuse(config, details)
  local realm = (config.realm or "restricted"):gsub('[\\"]', "\\%0")
  envoy.respond({
    [":status"] = "401",
    ["content-type"] = "text/plain",
    ["www-authenticate"] = (config.scheme or "Key") .. ' realm="' .. realm .. '"',
  }, "unauthorized\n", details)
end

function handler:on_request_header()
  local config = envoy.config()
  local setup = prepared[config]
  if setup.consumer_header then
    envoy.req.clear_header(setup.consumer_header)
  end

  local keys, carried = find_keys(setup)
  local consumer
  if not carried then
    if not config.anonymous then
      return refuse(config, "outrider.key-auth.no_key")
    end
    consumer = config.anonymous
  else
    -- With two keys, the upstream could take another consumer's than this plugin.
    if #keys > 1 then
      return refuse(config, "outrider.key-auth.several_keys")
    end
    local entry = setup.known[sha256(keys[1])]
    if not entry or not equal(entry.key, keys[1]) then
      return refuse(config, "outrider.key-auth.wrong_key")
    end
    consumer = entry.name
  end

  if setup.consumer_header then
    envoy.req.set_header(setup.consumer_header, consumer)
  end
  if config.hide_credentials and carried then
    hide(setup)
  end
end

return handler
