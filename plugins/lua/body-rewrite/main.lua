-- Finds and replaces text in whole bodies.
--
-- What is never touched: other media types than the configured ones, compressed bodies, and parts of
-- a resource (206), whose offsets would no longer fit.
--
-- The handlers are those of version 1, because there `get_body` waits for the body where it is
-- called. Handlers of version 2 would have every body held back before they could look at its type:
-- a download, or a stream of events, that this plugin has no business with.

local patterns = require("pattern")

local handler = {}

local floor, max = math.floor, math.max

-- How large a body may become while its rules are applied: so many bytes, or twice its length.
local LARGEST = 4 * 1024 * 1024

local default_types = { "text/*", "application/json", "application/javascript", "application/xml" }

-- What a body's text says of itself, and what is no longer true once the text has changed.
local validators = { "etag", "content-md5", "digest", "content-digest", "repr-digest", "accept-ranges" }

-- Raises an error when `pattern` is no Lua pattern. Lua itself finds faults only where a match gets
-- to, which is too late: on somebody's request. Returns the number of captures.
local function check_pattern(pattern)
  local position, captures, open = 1, 0, {}
  local function at(index)
    return pattern:sub(index, index)
  end
  -- Returns the index after the set that begins at `index`.
  local function skip_set(index)
    index = index + 1
    if at(index) == "^" then
      index = index + 1
    end
    repeat
      if at(index) == "" then
        error("`[` is not closed by `]`", 0)
      end
      if at(index) == "%" then
        index = index + 1
      end
      index = index + 1
    until at(index) == "]"
    return index + 1
  end

  while position <= #pattern do
    local character = at(position)
    if character == "(" then
      captures = captures + 1
      open[#open + 1] = captures
      position = position + 1
    elseif character == ")" then
      if #open == 0 then
        error("`)` closes nothing; a parenthesis itself is written `%)`", 0)
      end
      open[#open] = nil
      position = position + 1
    elseif character == "[" then
      position = skip_set(position)
    elseif character == "%" then
      local following = at(position + 1)
      if following == "" then
        error("it ends with `%`; a percent sign itself is written `%%`", 0)
      elseif following == "b" then
        if #pattern < position + 3 then
          error("`%b` needs two characters after it", 0)
        end
        position = position + 4
      elseif following == "f" then
        if at(position + 2) ~= "[" then
          error("`%f` needs a set such as `[%w]` after it", 0)
        end
        position = skip_set(position + 2)
      elseif following:find("%d") then
        local number = tonumber(following)
        local is_open = false
        for _, capture in ipairs(open) do
          is_open = is_open or capture == number
        end
        if number == 0 or number > captures or is_open then
          error("`%" .. following .. "` refers to a capture that is not there", 0)
        end
        position = position + 2
      else
        position = position + 2
      end
    else
      position = position + 1
    end
  end
  if #open > 0 then
    error("`(` is not closed by `)`; a parenthesis itself is written `%(`", 0)
  end
  if captures > 32 then
    error("it has more than 32 captures", 0)
  end
  return captures
end

-- Raises an error when `replacement` refers to captures that a pattern does not have.
local function check_replacement(replacement, captures)
  -- Without captures, `%1` is the whole match.
  local last = math.max(captures, 1)
  for following in replacement:gmatch("%%(.?)") do
    if following:find("%d") then
      if tonumber(following) > last then
        error("`%" .. following .. "` refers to a capture that the pattern does not have", 0)
      end
    elseif following ~= "%" then
      error("a percent sign in it is written `%%`", 0)
    end
  end
end

local function check_rules(rules, direction)
  for index, rule in ipairs(rules or {}) do
    if rule.pattern then
      local where = direction .. "." .. index - 1
      local ok, result = pcall(check_pattern, rule.pattern)
      if not ok then
        error(where .. ".pattern: `" .. rule.pattern .. "`: " .. result, 0)
      end
      local fine, why = pcall(check_replacement, rule.replace, result)
      if not fine then
        error(where .. ".replace: `" .. rule.replace .. "`: " .. why, 0)
      end
    end
  end
end

-- Rules as arguments of `envoy.re.replace` (`regex`, `with`), or of `string.gsub` where a pattern has no
-- regular expression. `references` counts references to captures: each adds at most a match's length to a
-- match, and the rest of `replacement` at most its own.
local function compile_rules(rules)
  local compiled = {}
  for index, rule in ipairs(rules or {}) do
    if rule.pattern then
      local _, references = rule.replace:gsub("%%%d", "")
      local regex = patterns.translated(rule.pattern)
      local with = patterns.translated_replacement(rule.replace, check_pattern(rule.pattern))
      -- An error means that it is larger than `envoy.re` takes.
      if regex and not pcall(envoy.re.replace, "", regex, with) then
        regex = nil
      end
      compiled[index] = {
        pattern = rule.pattern, replacement = rule.replace, references = references, regex = regex, with = with,
      }
    else
      -- Every character for itself: what is special to patterns and replacements is escaped.
      compiled[index] = {
        pattern = rule.find:gsub("%p", "%%%0"),
        replacement = rule.replace:gsub("%%", "%%%%"),
        references = 0,
      }
    end
  end
  return compiled
end

-- Compiled configurations; one that is gone takes its compiled form along.
local compiled = setmetatable({}, { __mode = "k" })

-- Whether the body that these headers announce is one to change.
local function applies(types, message)
  for index = 0, message.get_header_size("content-encoding") - 1 do
    if (message.get_header_index("content-encoding", index) or ""):lower() ~= "identity" then
      return false
    end
  end
  if types["*/*"] then
    return true
  end
  local content_type = message.get_header("content-type") or ""
  local media_type = content_type:match("^%s*([^;%s]+)")
  if not media_type then
    return false
  end
  media_type = media_type:lower()
  return types[media_type] or types[media_type:match("^[^/]*") .. "/*"] or false
end

-- The body after all rules; nil where it is too large for a pattern, or would become too large on the way.
local function rewritten(body, rules)
  local largest = max(LARGEST, 2 * #body)
  for _, rule in ipairs(rules) do
    if rule.references * #body > largest then
      return nil
    end
    local most = floor(largest / max(1, #rule.replacement))
    local made, count
    if rule.regex then
      -- An error means that the body is too long for the pattern.
      local is_made
      is_made, made, count = pcall(envoy.re.replace, body, rule.regex, rule.with, most + 1)
      if not is_made then
        return nil
      end
    else
      made, count = body:gsub(rule.pattern, rule.replacement, most + 1)
    end
    if count > most or #made > largest then
      return nil
    end
    body = made
  end
  return body
end

-- Returns false where the body is too large, or would become larger than can be held back.
local function rewrite(rules, message)
  local buffer = message.get_body()
  if not buffer then
    return true
  end
  local body = buffer:getBytes(0, buffer:length())
  local changed = rewritten(body, rules)
  if not changed then
    return false
  end
  if changed ~= body then
    -- An error means that the body is larger than the gateway's `body_limit`.
    if not pcall(message.set_body, changed) then
      return false
    end
    for _, name in ipairs(validators) do
      message.clear_header(name)
    end
  end
  return true
end

local function refuse(status, body)
  envoy.respond(
    { [":status"] = status, ["content-type"] = "text/plain" },
    body,
    "outrider.body-rewrite.too_large"
  )
end

function handler:on_configure(config)
  check_rules(config.request, "request")
  check_rules(config.response, "response")
  local types = {}
  for _, media_type in ipairs(config.content_types or default_types) do
    types[media_type:lower()] = true
  end
  compiled[config] = {
    request = compile_rules(config.request),
    response = compile_rules(config.response),
    types = types,
  }
end

function handler:on_request()
  local settings = compiled[envoy.config()]
  if #settings.response > 0 then
    -- A compressed response could not be read.
    envoy.req.clear_header("accept-encoding")
  end
  if #settings.request > 0 and applies(settings.types, envoy.req) then
    if not rewrite(settings.request, envoy.req) then
      refuse("413", "the request is too large\n")
    end
  end
end

function handler:on_response()
  local settings = compiled[envoy.config()]
  if #settings.response == 0 or not applies(settings.types, envoy.resp) then
    return
  end
  if envoy.resp.get_header(":status") == "206" then
    return
  end
  if envoy.req.get_header(":method") == "HEAD" then
    -- These describe a body that would be rewritten, and is not here to be.
    envoy.resp.clear_header("content-length")
    for _, name in ipairs(validators) do
      envoy.resp.clear_header(name)
    end
    return
  end
  if not rewrite(settings.response, envoy.resp) then
    envoy.logWarn("a response is replaced by 500: its body is, or would become, too large")
    refuse("500", "the response is too large\n")
  end
end

return handler
