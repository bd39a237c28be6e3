-- Authentication by a key that the client sends in a header, a query parameter or a cookie.
--
-- Keys are looked up by their digest: how long a look-up takes tells nothing about how much of a key
-- was guessed right, and many consumers cost no more than one.

local handler = { version = "v2" }

local sha256, equal = envoy.crypto.sha256, envoy.crypto.constant_time_equals

-- What is known of each configuration; one that is gone takes it along.
local prepared = setmetatable({}, { __mode = "k" })

local function lowered(list)
  local lower = {}
  for index, name in ipairs(list or {}) do
    lower[index] = name:lower()
  end
  return lower
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
  for _, name in ipairs(headers) do
    if name == consumer_header then
      error("`consumer_header` cannot be a header that carries keys; choose another, for example x-consumer", 0)
    end
  end
  prepared[config] = {
    known = digests(config.consumers),
    headers = headers,
    query = config.query or {},
    cookies = config.cookies or {},
    scheme = config.scheme and config.scheme:lower(),
    consumer_header = consumer_header,
  }
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

-- Every key in the request, at most two: more than one is wrong in any case.
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
      local value = envoy.req.get_header_index(name, index) or ""
      if setup.scheme then
        local scheme, key = value:match("^(%S+) +(.-) *$")
        -- Another scheme is another plugin's business.
        if scheme and scheme:lower() == setup.scheme then
          add(key)
        end
      else
        add(value)
      end
    end
  end

  if #setup.query > 0 then
    local _, query = path_and_query()
    for parameter in query:gmatch("[^&]+") do
      local name, value = parameter:match("^([^=]*)=?(.*)$")
      name = decoded(name)
      for _, wanted in ipairs(setup.query) do
        if name == wanted then
          add(decoded(value))
        end
      end
    end
  end

  if #setup.cookies > 0 then
    for index = 0, envoy.req.get_header_size("cookie") - 1 do
      local cookies = envoy.req.get_header_index("cookie", index) or ""
      for name, value in cookies:gmatch("([^%s=;]+)%s*=%s*([^;]*)") do
        for _, wanted in ipairs(setup.cookies) do
          if name == wanted then
            add((value:gsub("%s+$", "")))
          end
        end
      end
    end
  end
  return found, carried
end

local function remove_from_query(names)
  local path, query = path_and_query()
  local kept = {}
  for parameter in query:gmatch("[^&]+") do
    local name = decoded(parameter:match("^[^=]*"))
    local is_key = false
    for _, wanted in ipairs(names) do
      is_key = is_key or name == wanted
    end
    if not is_key then
      -- As it was written: the upstream may decode in its own way.
      kept[#kept + 1] = parameter
    end
  end
  if #kept > 0 then
    path = path .. "?" .. table.concat(kept, "&")
  end
  envoy.req.set_header(":path", path)
end

local function remove_from_cookies(names)
  local kept = {}
  for index = 0, envoy.req.get_header_size("cookie") - 1 do
    local cookies = envoy.req.get_header_index("cookie", index) or ""
    for cookie in cookies:gmatch("[^;]+") do
      local name = cookie:match("^%s*([^%s=]*)")
      local is_key = false
      for _, wanted in ipairs(names) do
        is_key = is_key or name == wanted
      end
      if not is_key then
        kept[#kept + 1] = cookie:match("^%s*(.-)%s*$")
      end
    end
  end
  if #kept > 0 then
    envoy.req.set_header("cookie", table.concat(kept, "; "))
  else
    envoy.req.clear_header("cookie")
  end
end

local function hide(setup)
  for _, name in ipairs(setup.headers) do
    envoy.req.clear_header(name)
  end
  if #setup.query > 0 then
    remove_from_query(setup.query)
  end
  if #setup.cookies > 0 then
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
    -- Two keys in one request mean that somebody hopes the two of us read different ones.
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
