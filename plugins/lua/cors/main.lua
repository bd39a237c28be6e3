-- Cross-origin resource sharing, by the Fetch standard.
--
-- The plugin is the authority: what an upstream says about origins is replaced. The trap is caches: a
-- response that depends on the origin says so in `vary`, also where there was no origin.

local handler = { version = "v2" }

-- A host name has at most 253 characters. A longer origin is not one that a browser sends, and the time to
-- search it grows with its length.
local LONGEST_ORIGIN = 512

-- The most that a preflight request's list of headers is repeated.
local LONGEST_LIST = 8192

local default_methods = { "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE" }
local default_headers = { "content-type", "authorization", "x-requested-with" }

-- Compiled configurations; one that is gone takes its compiled form along.
local prepared = setmetatable({}, { __mode = "k" })

-- Whether a list has `*`, and its other members as one text.
local function listed(list)
  local names, all = {}, false
  for _, name in ipairs(list) do
    if name == "*" then
      all = true
    else
      names[#names + 1] = name
    end
  end
  return all, table.concat(names, ", ")
end

-- A regular expression for `https://*.example.com`: a star stands for what can be in a host or a port.
-- Unlike a Lua pattern, it is searched in linear time.
local function wildcard(origin)
  return "^" .. origin:gsub("[^%w*]", "\\%0"):gsub("%*", "[a-z0-9._-]+") .. "$"
end

-- Returns a regular expression after a first use, which compiles it.
local function compiled(pattern, place)
  local ok, problem = pcall(envoy.re.match, "", pattern)
  if not ok then
    error(place .. ": " .. tostring(problem):gsub("^[^:]*:%d+: ", ""), 0)
  end
  return pattern
end

local function compile_origins(config, setup)
  for index, origin in ipairs(config.origins or {}) do
    origin = origin:lower()
    local place = "origins." .. index - 1 .. ": `" .. origin .. "`"
    if origin == "*" then
      setup.any = true
    elseif origin == "null" then
      setup.exact[origin] = true
    elseif not origin:find("^[%w+.*-]+://[^/?#]+$") then
      error(place .. " is no origin; an origin is like https://shop.example.com, without a path", 0)
    elseif origin:find("*", 1, true) then
      if origin:match("^[^:]*"):find("*", 1, true) then
        error(place .. ": a wildcard cannot stand for the scheme", 0)
      end
      setup.patterns[#setup.patterns + 1] = compiled(wildcard(origin), "origins." .. index - 1)
    else
      setup.exact[origin] = true
    end
  end
  for index, pattern in ipairs(config.origin_patterns or {}) do
    -- The whole origin has to match: half a match lets https://example.com.evil.test in.
    local whole = "^(?:" .. pattern .. ")$"
    setup.patterns[#setup.patterns + 1] = compiled(whole, "origin_patterns." .. index - 1)
  end
end

function handler:on_configure(config)
  local setup = { any = false, exact = {}, patterns = {} }
  compile_origins(config, setup)
  if setup.any and config.credentials then
    error("`credentials` with the origin `*` would let every site act in its visitors' name; list the origins", 0)
  end
  setup.all_methods, setup.methods = listed(config.methods or default_methods)
  setup.all_headers, setup.headers = listed(config.headers or default_headers)
  if config.expose then
    setup.expose = table.concat(config.expose, ", ")
  end
  prepared[config] = setup
end

local function is_allowed(setup, origin)
  if setup.any then
    return true
  end
  origin = origin:lower()
  if setup.exact[origin] then
    return true
  end
  for _, pattern in ipairs(setup.patterns) do
    -- A text that is too long for its pattern raises an error.
    local is_searched, is_found = pcall(envoy.re.match, origin, pattern)
    if is_searched and is_found then
      return true
    end
  end
  return false
end

-- The origin that calls, or nil. Several, or one that is too long, do not come from a browser.
local function calling_origin()
  if envoy.req.get_header_size("origin") == 1 then
    local origin = envoy.req.get_header("origin")
    return #origin <= LONGEST_ORIGIN and origin or nil
  end
end

-- A header of the preflight request, or nil where it is missing or too long to be repeated.
local function asked(name)
  local value = envoy.req.get_header(name)
  return value and #value <= LONGEST_LIST and value or nil
end

-- The answer to a preflight request: what the origin may ask for.
local function preflight_headers(config, setup, origin)
  local asked_headers = asked("access-control-request-headers")
  local headers = {
    ["access-control-allow-origin"] = setup.any and "*" or origin,
    -- A star of ours is not sent as one: for calls with credentials, browsers take it for a name.
    ["access-control-allow-methods"] = setup.all_methods
        and asked("access-control-request-method")
      or setup.methods,
    ["access-control-allow-headers"] = setup.all_headers and asked_headers or setup.headers,
    ["access-control-max-age"] = config.max_age and tostring(config.max_age),
    ["access-control-allow-credentials"] = config.credentials and "true" or nil,
  }
  if config.private_network and envoy.req.get_header("access-control-request-private-network") == "true" then
    headers["access-control-allow-private-network"] = "true"
  end
  for name, value in pairs(headers) do
    if value == "" then
      headers[name] = nil
    end
  end
  return headers
end

local preflight_vary = "origin, access-control-request-method, access-control-request-headers"

function handler:on_request_header()
  local config = envoy.config()
  local setup = prepared[config]
  local shared = envoy.stream.shared
  local origin = calling_origin()
  shared.seen = true
  shared.origin = origin and is_allowed(setup, origin) and origin or nil

  local is_preflight = origin
    and envoy.req.get_header(":method") == "OPTIONS"
    and envoy.req.get_header("access-control-request-method")
  if not is_preflight then
    return
  end
  if config.forward_preflight then
    shared.preflight = shared.origin and preflight_headers(config, setup, origin)
    return
  end
  if not shared.origin then
    return envoy.respond(
      { [":status"] = "403", ["content-type"] = "text/plain", vary = preflight_vary },
      "this origin may not call\n",
      "outrider.cors.origin_not_allowed"
    )
  end
  local headers = preflight_headers(config, setup, origin)
  headers[":status"] = "204"
  headers.vary = preflight_vary
  envoy.respond(headers, "", "outrider.cors.preflight")
end

-- Adds `origin` to what the response says that it depends on.
local function vary_by_origin()
  local values = {}
  for index = 0, envoy.resp.get_header_size("vary") - 1 do
    local value = envoy.resp.get_header_index("vary", index) or ""
    for name in value:gmatch("[^,%s]+") do
      if name == "*" or name:lower() == "origin" then
        return
      end
    end
    values[#values + 1] = value
  end
  values[#values + 1] = "origin"
  envoy.resp.set_header("vary", table.concat(values, ", "))
end

-- What an upstream says of origins; only the gateway's word counts.
local answers = {
  "access-control-allow-origin",
  "access-control-allow-credentials",
  "access-control-expose-headers",
  "access-control-allow-methods",
  "access-control-allow-headers",
  "access-control-max-age",
  "access-control-allow-private-network",
}

function handler:on_response_header()
  local config = envoy.config()
  local setup = prepared[config]
  local shared = envoy.stream.shared
  -- A reply that was made before the request came here is none of this plugin's.
  if not shared.seen then
    return
  end
  for _, name in ipairs(answers) do
    envoy.resp.clear_header(name)
  end
  if not setup.any then
    vary_by_origin()
  end
  if not shared.origin then
    return
  end
  if shared.preflight then
    for name, value in pairs(shared.preflight) do
      envoy.resp.set_header(name, value)
    end
    return
  end
  envoy.resp.set_header("access-control-allow-origin", setup.any and "*" or shared.origin)
  if config.credentials then
    envoy.resp.set_header("access-control-allow-credentials", "true")
  end
  if setup.expose and setup.expose ~= "" then
    envoy.resp.set_header("access-control-expose-headers", setup.expose)
  end
end

return handler
