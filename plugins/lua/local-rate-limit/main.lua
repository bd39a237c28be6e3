-- Limits on requests, counted in `envoy.shared`: over all workers of this Envoy, and each count is one
-- atomic step, so two requests at once cannot both take the last place.

local handler = { version = "v2" }

local floor, ceil, max = math.floor, math.ceil, math.max
local byte = string.byte

-- The bytes that `%s` stands for.
local is_space = { [9] = true, [10] = true, [11] = true, [12] = true, [13] = true, [32] = true }
local shared = envoy.shared

local seconds = { second = 1, minute = 60, hour = 3600, day = 86400 }

-- Longer values, and longer names of rules and headers, are counted by their digest: a client cannot fill
-- the memory with one, and keys of `envoy.shared` have a limit.
local LONGEST_VALUE = 128
local LONGEST_RULE = 512

-- A hundred years, in milliseconds.
local LONGEST_BURST = 100 * 365 * 86400 * 1000

-- Compiled rules by configuration; a configuration that is gone takes them along.
local prepared = setmetatable({}, { __mode = "k" })

-- The IP address of `address:port`; IPv6 addresses come in brackets.
local function address()
  local peer = envoy.streaminfo.downstream_remote_address() or ""
  return peer:match("^%[(.-)%]") or peer:match("^(.*):%d+$") or peer
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

-- The value of the first cookie of a name (RFC 6265, section 5.2), or nil.
local function cookie_of(wanted)
  for index = 0, envoy.req.get_header_size("cookie") - 1 do
    local cookies = envoy.req.get_header_index("cookie", index) or ""
    for cookie in cookies:gmatch("[^;]+") do
      local equals = cookie:find("=", 1, true)
      if equals and trimmed(cookie:sub(1, equals - 1)) == wanted then
        return trimmed(cookie:sub(equals + 1))
      end
    end
  end
end

-- All values of a header as one, so that a second one does not hide the first.
local function header_of(name)
  local count = envoy.req.get_header_size(name)
  if count <= 1 then
    return envoy.req.get_header(name)
  end
  local values = {}
  for index = 0, count - 1 do
    values[#values + 1] = envoy.req.get_header_index(name, index)
  end
  return table.concat(values, ",")
end

local function query_of(name)
  local value = envoy.req.get_query_parameters(10000)[name]
  if type(value) == "table" then
    value = table.concat(value, ",")
  end
  return value
end

-- The function that finds what a request is counted by, and a text that names it.
local function subject(by)
  if not by then
    return function()
      return ""
    end, "all"
  elseif by.header then
    local name = by.header:lower()
    return function()
      return header_of(name)
    end, "header:" .. name
  elseif by.query then
    return function()
      return query_of(by.query)
    end, "query:" .. by.query
  elseif by.cookie then
    return function()
      return cookie_of(by.cookie)
    end, "cookie:" .. by.cookie
  end
  return address, "address"
end

-- Each algorithm answers whether the request may pass, how many more may, and in how many milliseconds
-- (when refused) another may, or (when passed) all may again.
local algorithms = {}

algorithms["token-bucket"] = function(rule, key)
  local interval = rule.period / rule.limit
  local passes, number = shared.take(key, rule.burst, interval)
  if passes then
    return true, floor(number + 1e-6), (rule.burst - number) * interval
  end
  return false, 0, number
end

algorithms["fixed-window"] = function(rule, key)
  local count = shared.incr(key, 1, 0, rule.period)
  return count <= rule.limit, max(0, rule.limit - count), shared.ttl(key) or rule.period
end

-- The window before counts by the share of it that is still within the time: exact where requests come
-- evenly, and never more than twice the limit at worst.
algorithms["sliding-window"] = function(rule, key)
  local now = envoy.nowms()
  local window = floor(now / rule.period)
  local passed = now - window * rule.period
  local current = key .. string.format("%.0f", window)
  local before = shared.get(key .. string.format("%.0f", window - 1)) or 0
  local weighed = before * (1 - passed / rule.period)
  local count = shared.incr(current, 1, 0, 2 * rule.period)
  if count + weighed <= rule.limit then
    return true, max(0, floor(rule.limit - weighed - count)), rule.period - passed
  end
  -- A refused request takes no place.
  shared.incr(current, -1, 0, 2 * rule.period)
  -- As time goes on, the window before counts for less: until one more is within the limit.
  local room = rule.limit - (count - 1) - 1
  if room >= 0 and before > 0 then
    return false, 0, max(1, (1 - room / before) * rule.period - passed)
  end
  return false, 0, rule.period - passed
end

local function compile(rule, index)
  local place = "rules." .. index - 1
  local algorithm = rule.algorithm or "token-bucket"
  if rule.burst and algorithm ~= "token-bucket" then
    error(place .. ": `burst` has a meaning with `token-bucket` only; remove it", 0)
  end
  if rule.missing and (not rule.by or rule.by.address) then
    error(place .. ": `missing` has no meaning here: nothing can be missing; remove it", 0)
  end
  local find, what = subject(rule.by)
  local period = (seconds[rule.per] or rule.per) * 1000
  -- What `envoy.shared.take` can count.
  if (rule.burst or rule.limit) * period / rule.limit > LONGEST_BURST then
    error(place .. ": a bucket that takes more than 100 years to fill again; choose a smaller `burst`", 0)
  end
  -- Rules that differ count apart; the key is the same on every worker.
  local key = table.concat({
    rule.name or place, what, algorithm, rule.limit, period, rule.burst or "", "",
  }, "\1")
  if #key > LONGEST_RULE then
    key = envoy.crypto.hex(envoy.crypto.sha256(key)) .. "\1"
  end
  return {
    name = rule.name or place,
    find = find,
    missing = rule.missing or "address",
    limit = rule.limit,
    period = period,
    burst = rule.burst or rule.limit,
    check = algorithms[algorithm],
    key = key,
  }
end

function handler:on_configure(config)
  local rules = {}
  for index, rule in ipairs(config.rules) do
    rules[index] = compile(rule, index)
  end
  prepared[config] = rules
end

-- The key under which a request counts, or nil where it does not.
local function key_of(rule)
  local value = rule.find()
  if value == nil then
    if rule.missing == "pass" then
      return nil
    elseif rule.missing == "together" then
      return rule.key .. "-"
    end
    return rule.key .. "@" .. address()
  end
  if #value > LONGEST_VALUE then
    value = "#" .. envoy.crypto.hex(envoy.crypto.sha256(value))
  else
    value = "=" .. value
  end
  return rule.key .. value
end

local function limit_headers(headers, rule, remaining, milliseconds)
  -- The most that can be left: with a bucket, what it holds.
  headers["x-ratelimit-limit"] = string.format("%d", rule.burst)
  headers["x-ratelimit-remaining"] = string.format("%d", remaining)
  headers["x-ratelimit-reset"] = string.format("%d", max(0, ceil(milliseconds / 1000)))
  return headers
end

local function refuse(config, rule, milliseconds)
  local headers = {
    [":status"] = tostring(config.status or 429),
    ["content-type"] = "text/plain",
    ["retry-after"] = string.format("%d", max(1, ceil(milliseconds / 1000))),
  }
  if config.limit_headers ~= false then
    limit_headers(headers, rule, 0, milliseconds)
  end
  envoy.respond(headers, config.message or "too many requests\n", "outrider.local-rate-limit.exceeded")
end

function handler:on_request_header()
  local config = envoy.config()
  if config.report_only then
    envoy.req.clear_header("x-ratelimit-exceeded")
  end
  local tightest
  for _, rule in ipairs(prepared[config]) do
    local key = key_of(rule)
    if key then
      local passes, remaining, milliseconds = rule.check(rule, key)
      if not passes and not config.report_only then
        return refuse(config, rule, milliseconds)
      end
      if not passes then
        envoy.logInfo("over the limit of " .. rule.name)
        envoy.req.add_header("x-ratelimit-exceeded", rule.name)
      end
      if not tightest or remaining < tightest.remaining then
        tightest = { rule = rule, remaining = remaining, milliseconds = milliseconds }
      end
    end
  end
  envoy.stream.shared.tightest = tightest
end

function handler:on_response_header()
  local config = envoy.config()
  local tightest = envoy.stream.shared.tightest
  if tightest and config.limit_headers ~= false then
    local headers = limit_headers({}, tightest.rule, tightest.remaining, tightest.milliseconds)
    for name, value in pairs(headers) do
      envoy.resp.set_header(name, value)
    end
  end
end

return handler
