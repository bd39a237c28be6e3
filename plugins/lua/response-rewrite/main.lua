-- Changes of responses by their status.
--
-- The handlers are those of version 1, because there a body is waited for where it is asked for: a
-- response that no rule wants the body of is not held back.

local handler = {}

local floor, max, min = math.floor, math.max, math.min

-- More than can be found in any body.
local HUGE = 2 ^ 31 - 1

-- Headers of the connection and of the message's framing, which belong to the proxy.
local reserved = {
  ["connection"] = true, ["content-length"] = true, ["keep-alive"] = true, ["proxy-connection"] = true,
  ["te"] = true, ["trailer"] = true, ["transfer-encoding"] = true, ["upgrade"] = true, [":status"] = true,
}

-- Statuses whose responses have no body (RFC 9110, sections 15.3.5, 15.3.6 and 15.4.5).
local bodiless = { [204] = true, [205] = true, [304] = true }

-- How large a body may become while its replacements are made: so many bytes, or twice its length.
local LARGEST = 4 * 1024 * 1024

-- What a body's text says of itself, and what is no longer true once the text has changed.
local validators = { "etag", "content-md5", "digest", "content-digest", "repr-digest", "accept-ranges" }

-- Compiled rules by configuration; a configuration that is gone takes them along.
local prepared = setmetatable({}, { __mode = "k" })

-- A set of all status codes that a list names; nil for no list.
local function statuses(list, place)
  if not list then
    return nil
  end
  local set = {}
  for _, said in ipairs(list) do
    local first, last = said, said
    if type(said) == "string" then
      local class = said:match("^(%d)xx$")
      if class then
        first, last = class * 100, class * 100 + 99
      else
        first, last = said:match("^(%d+)-(%d+)$")
        first, last = tonumber(first), tonumber(last)
        if first > last then
          error(place .. ".status: `" .. said .. "` ends before it begins", 0)
        end
      end
    end
    for status = first, last do
      set[status] = true
    end
  end
  return set
end

local function checked_name(name, place)
  name = name:lower()
  if reserved[name] then
    error(place .. ": `" .. name .. "` is the proxy's, and cannot be changed here", 0)
  end
  return name
end

local function sorted_names(map)
  local names = {}
  for name in pairs(map or {}) do
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

local function compile_headers(said, place)
  local headers = { remove = {}, set = {}, add = {} }
  for index, name in ipairs(said.remove or {}) do
    headers.remove[index] = checked_name(name, place .. ".headers.remove." .. index - 1)
  end
  for index, name in ipairs(sorted_names(said.set)) do
    headers.set[index] = { checked_name(name, place .. ".headers.set"), said.set[name] }
  end
  for _, name in ipairs(sorted_names(said.add)) do
    local values = said.add[name]
    if type(values) ~= "table" then
      values = { values }
    end
    for _, value in ipairs(values) do
      headers.add[#headers.add + 1] = { checked_name(name, place .. ".headers.add"), value }
    end
  end
  return headers
end

-- The new body's bytes.
local function compile_body(said, place)
  if said.text then
    return said.text
  end
  local bytes = envoy.base64.decode(said.base64)
  if not bytes then
    error(place .. ".body.base64: this is not Base64", 0)
  end
  return bytes
end

-- Replacements with the number of their references to groups: each adds at most a match's length to a
-- match, and the rest of `with` at most its own.
local function compile_replacements(list, place)
  local compiled = {}
  for index, said in ipairs(list) do
    local ok, problem = pcall(envoy.re.replace, "", said.pattern, said.with, said.first)
    if not ok then
      error(place .. ".replace." .. index - 1 .. ": " .. tostring(problem):gsub("^[^:]*:%d+: ", ""), 0)
    end
    local _, references = said.with:gsub("%$", "")
    compiled[index] = {
      pattern = said.pattern, with = said.with, first = said.first or HUGE, references = references,
    }
  end
  return compiled
end

local function compile_rule(rule, place)
  if rule.body and rule.replace then
    error(place .. ": `body` and `replace` exclude each other; write the whole body as it shall be", 0)
  end
  local status = rule.set_status
  if rule.body and bodiless[status] then
    error(place .. ": a response with status " .. status .. " has no body; remove `body`", 0)
  end
  local methods
  if rule.methods then
    methods = {}
    for _, method in ipairs(rule.methods) do
      methods[method] = true
    end
  end
  return {
    statuses = statuses(rule.status, place),
    methods = methods,
    set_status = status,
    headers = rule.headers and compile_headers(rule.headers, place),
    body = rule.body and compile_body(rule.body, place),
    content_type = rule.body and rule.body.content_type,
    replace = rule.replace and compile_replacements(rule.replace, place),
  }
end

function handler:on_configure(config)
  local setup = { rules = {}, replaces = false }
  for index, rule in ipairs(config.rules) do
    setup.rules[index] = compile_rule(rule, "rules." .. index - 1)
    setup.replaces = setup.replaces or rule.replace ~= nil
  end
  prepared[config] = setup
end

function handler:on_request()
  if prepared[envoy.config()].replaces then
    -- What is compressed cannot be searched.
    envoy.req.clear_header("accept-encoding")
  end
end

local function apply_headers(headers)
  for _, name in ipairs(headers.remove) do
    envoy.resp.clear_header(name)
  end
  for _, entry in ipairs(headers.set) do
    envoy.resp.set_header(entry[1], entry[2])
  end
  for _, entry in ipairs(headers.add) do
    envoy.resp.add_header(entry[1], entry[2])
  end
end

-- The response's headers without what was true of its old body.
local function forget_body()
  for _, name in ipairs(validators) do
    envoy.resp.clear_header(name)
  end
end

-- Ends the stream with 500: the body that this configuration wants cannot be made.
local function fail(reason)
  envoy.logWarn("a response is replaced by 500: " .. reason)
  envoy.respond(
    { [":status"] = "500", ["content-type"] = "text/plain" },
    "the response is too large\n",
    "outrider.response-rewrite.too_large"
  )
end

-- Replaces the body that there is.
local function set_body(content)
  local is_set, problem = pcall(envoy.resp.set_body, content)
  if not is_set then
    fail(tostring(problem))
  end
end

-- Makes `content` the whole body, also of a response that had none.
local function put_body(content)
  forget_body()
  envoy.resp.clear_header("content-encoding")
  envoy.resp.clear_header("content-range")
  if envoy.resp.get_body() then
    set_body(content)
  elseif content ~= "" then
    -- There is nothing to replace. A reply takes the response's place, with its headers.
    local headers = envoy.resp.get_headers()
    local status = tonumber(headers[":status"])
    if not status or status < 200 or status > 599 then
      -- No reply can have such a status.
      headers[":status"] = "502"
    end
    local details = envoy.streaminfo.response_code_details()
    envoy.respond(headers, content, details or "outrider.response-rewrite")
  end
end

local function can_be_searched(status)
  for index = 0, envoy.resp.get_header_size("content-encoding") - 1 do
    if (envoy.resp.get_header_index("content-encoding", index) or ""):lower() ~= "identity" then
      return false
    end
  end
  -- Parts of a resource have offsets that would no longer fit; several parts have theirs in the body.
  return status ~= 206 and envoy.resp.get_header("content-range") == nil
end

-- The body after one replacement, and how many matches were replaced; nil and why it cannot be made.
local function replace(body, replacement, largest)
  if replacement.references * #body > largest then
    return nil, "its replacements can become larger than is kept"
  end
  local most = min(replacement.first, floor(largest / max(1, #replacement.with)))
  local is_made, made, count = pcall(envoy.re.replace, body, replacement.pattern, replacement.with, most)
  if not is_made then
    return nil, tostring(made)
  end
  if #made > largest or (count == most and most < replacement.first) then
    return nil, "its replacements are larger than is kept"
  end
  return made, count
end

-- The body after all replacements of these rules, and whether any was made; nil and why it cannot be made.
local function replaced(body, rules)
  local changed, largest = false, max(LARGEST, 2 * #body)
  for _, rule in ipairs(rules) do
    for _, replacement in ipairs(rule.replace or {}) do
      local made, count = replace(body, replacement, largest)
      if not made then
        return nil, count
      end
      body, changed = made, changed or count > 0
    end
  end
  return body, changed
end

function handler:on_response()
  local arrived = tonumber(envoy.resp.get_header(":status"))
  local status = arrived
  local method = envoy.req.get_header(":method")
  local met = {}
  for _, rule in ipairs(prepared[envoy.config()].rules) do
    if (not rule.statuses or rule.statuses[arrived]) and (not rule.methods or rule.methods[method]) then
      met[#met + 1] = rule
    end
  end

  -- Status and headers first: they go with whatever body there will be.
  local content, replaces
  for _, rule in ipairs(met) do
    if rule.set_status then
      envoy.resp.set_header(":status", tostring(rule.set_status))
      status = rule.set_status
    end
    if rule.content_type then
      envoy.resp.set_header("content-type", rule.content_type)
    end
    if rule.headers then
      apply_headers(rule.headers)
    end
    content = rule.body or content
    replaces = replaces or rule.replace ~= nil
  end

  if bodiless[status] then
    -- Whatever announces it, no body may follow: the client would take it for another response.
    if #met > 0 and method ~= "HEAD" and envoy.resp.get_body() then
      envoy.resp.set_body("")
    end
    return
  end
  if method == "HEAD" then
    -- Nobody knows how long the body would have become.
    if content or replaces then
      forget_body()
      envoy.resp.clear_header("content-length")
    end
    return
  end
  if content then
    put_body(content)
  elseif replaces and can_be_searched(arrived) then
    local body = envoy.resp.get_body()
    if body then
      local text, changed = replaced(body:getBytes(0, body:length()), met)
      if not text then
        fail(changed)
      elseif changed then
        forget_body()
        set_body(text)
      end
    end
  end
end

return handler
