-- Tags requests: the first rule whose conditions are met decides.
--
-- A share that is sticky is a function of the key alone: SHA-256 of it, as a number, says where in the
-- line of shares it falls. So it is the same on every worker, in every Envoy, and after a restart.

local handler = { version = "v2" }

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

-- Compiled configurations; one that is gone takes its compiled form along.
local prepared = setmetatable({}, { __mode = "k" })

-- The IP address of `address:port`; IPv6 addresses come in brackets.
local function address()
  local peer = envoy.streaminfo.downstream_remote_address() or ""
  return peer:match("^%[(.-)%]") or peer:match("^(.*):%d+$") or peer
end

local function headers_of(name)
  local values = {}
  for index = 0, envoy.req.get_header_size(name) - 1 do
    values[#values + 1] = envoy.req.get_header_index(name, index)
  end
  return values
end

local function query_of(name)
  local value = envoy.req.get_query_parameters(10000)[name]
  if type(value) == "table" then
    return value
  end
  return { value }
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

-- Name and value of one cookie (RFC 6265, section 5.2): split at the first `=`, without spaces around
-- either. A cookie without `=` has no name.
local function cookie_of(text)
  local equals = text:find("=", 1, true)
  if not equals then
    return "", trimmed(text)
  end
  return trimmed(text:sub(1, equals - 1)), trimmed(text:sub(equals + 1))
end

local function cookies_of(wanted)
  local values = {}
  for _, cookies in ipairs(headers_of("cookie")) do
    for cookie in cookies:gmatch("[^;]+") do
      local name, value = cookie_of(cookie)
      if name == wanted then
        values[#values + 1] = value
      end
    end
  end
  return values
end

local function path()
  return { (envoy.req.get_header(":path") or ""):match("^[^?#]*") }
end

-- The function that finds the values that `said` names, or nil.
local function source(said)
  if said.header then
    local name = said.header:lower()
    return function()
      return headers_of(name)
    end
  elseif said.query then
    return function()
      return query_of(said.query)
    end
  elseif said.cookie then
    return function()
      return cookies_of(said.cookie)
    end
  elseif said.path then
    return path
  elseif said.address then
    return function()
      return { address() }
    end
  end
end

-- The function that says whether a value is as a condition wants it.
local function test_of(condition, place)
  local tests = {}
  if condition.equals then
    local wanted = condition.equals
    if type(wanted) == "string" then
      wanted = { wanted }
    end
    local set = {}
    for _, value in ipairs(wanted) do
      set[value] = true
    end
    tests[#tests + 1] = function(value)
      return set[value] == true
    end
  end
  if condition.prefix then
    local prefix = condition.prefix
    tests[#tests + 1] = function(value)
      return value:sub(1, #prefix) == prefix
    end
  end
  if condition.pattern then
    local pattern = condition.pattern
    local ok, problem = pcall(envoy.re.match, "", pattern)
    if not ok then
      error(place .. ".pattern: " .. tostring(problem):gsub("^[^:]*:%d+: ", ""), 0)
    end
    tests[#tests + 1] = function(value)
      -- A text that is too long for its pattern raises an error. No value that an operator means is so long.
      local is_searched, is_found = pcall(envoy.re.match, value, pattern)
      return is_searched and is_found
    end
  end
  local count = #tests + (condition.present ~= nil and 1 or 0)
  if count ~= 1 then
    error(place .. ": a condition has exactly one of `equals`, `prefix`, `pattern` and `present`", 0)
  end
  return tests[1]
end

-- The function that says whether a condition is met.
local function compile_condition(condition, place)
  local turned = condition["not"] == true
  if condition.percent then
    for _, key in ipairs({ "equals", "prefix", "pattern", "present" }) do
      if condition[key] ~= nil then
        error(place .. ": `" .. key .. "` has no meaning with `percent`; write two conditions", 0)
      end
    end
    return function()
      -- `math.random` is below 1, so 0 means never and 100 means always.
      return (math.random() * 100 < condition.percent) ~= turned
    end
  end
  local find, test = source(condition), test_of(condition, place)
  if not test then
    return function()
      return ((#find() > 0) == condition.present) ~= turned
    end
  end
  return function()
    for _, value in ipairs(find()) do
      if test(value) then
        return not turned
      end
    end
    return turned
  end
end

-- Shares as a list of { tag, where it ends }, in the order of tags: a change of one weight moves no
-- more requests than it has to.
local function compile_weights(weights, place)
  local tags, shares, sum = {}, {}, 0
  for tag in pairs(weights) do
    tags[#tags + 1] = tag
  end
  table.sort(tags)
  for _, tag in ipairs(tags) do
    if weights[tag] > 0 then
      sum = sum + weights[tag]
      shares[#shares + 1] = { tag = tag, ends = sum }
    end
  end
  if sum == 0 then
    error(place .. ".weights: all are 0, so no tag can be chosen", 0)
  end
  return shares, sum
end

local function compile_rule(rule, place)
  local compiled = { conditions = {}, tag = rule.tag }
  for index, condition in ipairs(rule.when or {}) do
    compiled.conditions[index] = compile_condition(condition, place .. ".when." .. index - 1)
  end
  if not rule.weights then
    for _, key in ipairs({ "sticky", "remember" }) do
      if rule[key] then
        error(place .. ": `" .. key .. "` has no meaning without `weights`; remove it", 0)
      end
    end
    return compiled
  end

  compiled.shares, compiled.sum = compile_weights(rule.weights, place)
  if rule.sticky then
    local keys = 0
    for _, key in ipairs({ "header", "query", "cookie", "address" }) do
      keys = keys + (rule.sticky[key] and 1 or 0)
    end
    if keys ~= 1 then
      error(place .. ".sticky: exactly one of `header`, `query`, `cookie` and `address` is the key", 0)
    end
    compiled.key = source(rule.sticky)
    compiled.salt = rule.sticky.salt or ""
  end
  if rule.remember then
    local remember = rule.remember
    compiled.cookie = remember.cookie
    compiled.attributes = "; Path=" .. (remember.path or "/")
      .. (remember.max_age and "; Max-Age=" .. string.format("%d", remember.max_age) or "")
      .. "; HttpOnly; SameSite=Lax"
      .. (remember.secure and "; Secure" or "")
  end
  return compiled
end

function handler:on_configure(config)
  if config.header and reserved[config.header:lower()] then
    error("`header` cannot be `" .. config.header:lower() .. "`; choose another, for example x-traffic-tag", 0)
  end
  local rules = {}
  for index, rule in ipairs(config.rules) do
    rules[index] = compile_rule(rule, "rules." .. index - 1)
  end
  prepared[config] = rules
end

-- A number from 0 to below 1 that is the same for the same key, always.
local function place_of(salt, key)
  local a, b, c, d, e, f = byte(envoy.crypto.sha256(salt .. "\0" .. key), 1, 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) / 2 ^ 48
end

local function choose(rule)
  if rule.cookie then
    for _, remembered in ipairs(cookies_of(rule.cookie)) do
      for _, share in ipairs(rule.shares) do
        -- A tag that has no share any more is forgotten.
        if share.tag == remembered then
          return remembered
        end
      end
    end
  end
  local where
  if rule.key then
    local values = rule.key()
    if #values > 0 then
      where = place_of(rule.salt, table.concat(values, ","))
    end
  end
  where = (where or math.random()) * rule.sum
  local chosen = rule.shares[#rule.shares].tag
  for _, share in ipairs(rule.shares) do
    if where < share.ends then
      chosen = share.tag
      break
    end
  end
  if rule.cookie then
    envoy.stream.shared.remember = rule.cookie .. "=" .. chosen .. rule.attributes
  end
  return chosen
end

local function is_met(rule)
  for _, condition in ipairs(rule.conditions) do
    if not condition() then
      return false
    end
  end
  return true
end

function handler:on_request_header()
  local config = envoy.config()
  local header = config.header or "x-traffic-tag"
  if config.keep_incoming and envoy.req.get_header_size(header) == 1 then
    return
  end

  local tag
  for _, rule in ipairs(prepared[config]) do
    if is_met(rule) then
      tag = rule.tag or choose(rule)
      break
    end
  end
  tag = tag or config.default
  if tag then
    envoy.req.set_header(header, tag)
  else
    envoy.req.clear_header(header)
  end
  if config.reroute then
    envoy.req.clear_route_cache()
  end
end

function handler:on_response_header()
  local remember = envoy.stream.shared.remember
  if remember then
    envoy.resp.add_header("set-cookie", remember)
  end
end

return handler
