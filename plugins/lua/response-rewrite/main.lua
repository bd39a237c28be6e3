-- Changes of responses by their status.
--
-- The handlers are those of version 1, because there a body is waited for where it is asked for: a
-- response that no rule wants the body of is not held back.

local handler = {}

-- Lengths of bodies are the proxy's business: it keeps these right, whatever plugins do to a body.
local reserved = { ["content-length"] = true, ["transfer-encoding"] = true, [":status"] = true }

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
    headers.remove[index] = checked_name(name, place .. ".headers.remove." .. index)
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

local function compile_rule(rule, place)
  if rule.body and rule.replace then
    error(place .. ": `body` and `replace` exclude each other; write the whole body as it shall be", 0)
  end
  local status = rule.set_status
  if rule.body and (status == 204 or status == 304) then
    error(place .. ": a response with status " .. status .. " has no body; remove `body`", 0)
  end
  for index, replacement in ipairs(rule.replace or {}) do
    local ok, problem = pcall(envoy.re.match, "", replacement.pattern)
    if not ok then
      error(place .. ".replace." .. index .. ": " .. tostring(problem):gsub("^[^:]*:%d+: ", ""), 0)
    end
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
    replace = rule.replace,
  }
end

function handler:on_configure(config)
  local setup = { rules = {}, replaces = false }
  for index, rule in ipairs(config.rules) do
    setup.rules[index] = compile_rule(rule, "rules." .. index)
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

-- Makes `content` the whole body, also of a response that had none.
local function put_body(content)
  forget_body()
  envoy.resp.clear_header("content-encoding")
  envoy.resp.clear_header("content-range")
  if envoy.resp.get_body() then
    envoy.resp.set_body(content)
  elseif content ~= "" then
    -- There is nothing to replace. A reply takes the response's place, with its headers.
    local headers = envoy.resp.get_headers()
    local details = envoy.streaminfo.response_code_details()
    envoy.respond(headers, content, details or "outrider.response-rewrite")
  end
end

local function can_be_searched()
  local encoding = envoy.resp.get_header("content-encoding")
  if encoding and encoding:lower() ~= "identity" then
    return false
  end
  -- Parts of a resource have offsets that would no longer fit.
  return envoy.resp.get_header("content-range") == nil
end

local function replaced(body, rules)
  local changed = false
  for _, rule in ipairs(rules) do
    for _, replacement in ipairs(rule.replace or {}) do
      local count
      body, count = envoy.re.replace(body, replacement.pattern, replacement.with, replacement.first)
      changed = changed or count > 0
    end
  end
  return body, changed
end

function handler:on_response()
  local status = tonumber(envoy.resp.get_header(":status"))
  local method = envoy.req.get_header(":method")
  local met = {}
  for _, rule in ipairs(prepared[envoy.config()].rules) do
    if (not rule.statuses or rule.statuses[status]) and (not rule.methods or rule.methods[method]) then
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

  if status == 204 or status == 304 then
    if #met > 0 and envoy.resp.get_header("content-length") then
      envoy.resp.clear_header("content-length")
      if method ~= "HEAD" and envoy.resp.get_body() then
        envoy.resp.set_body("")
      end
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
  elseif replaces and can_be_searched() then
    local body = envoy.resp.get_body()
    if body then
      local text, changed = replaced(body:getBytes(0, body:length()), met)
      if changed then
        forget_body()
        envoy.resp.set_body(text)
      end
    end
  end
end

return handler
