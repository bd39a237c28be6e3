-- Checks requests by JSON Schema, before the upstream sees anything of them.
--
-- The handler is that of version 1, because there `get_body` waits for the body where it is called:
-- where only headers or the query are checked, no body is held back.

local handler = {}

local default_methods = { "POST", "PUT", "PATCH" }
local default_types = { "application/json", "application/*+json" }

-- Compiled configurations; one that is gone takes its compiled form along.
local prepared = setmetatable({}, { __mode = "k" })

local function compile_schema(schema, place)
  local ok, compiled = pcall(envoy.json_schema.compile, schema)
  if not ok then
    error(place .. ": " .. tostring(compiled):gsub("^[^:]*:%d+: ", ""), 0)
  end
  return compiled
end

-- What texts of headers and parameters are made before they are checked: what the schema's properties
-- say that they are.
local function types_of(schema)
  if type(schema) == "string" then
    schema = envoy.json.decode(schema)
  end
  local types = {}
  local properties = type(schema) == "table" and schema.properties
  for name, property in pairs(type(properties) == "table" and properties or {}) do
    if type(property) == "table" and type(property.type) == "string" then
      local items = property.items
      types[name] = { kind = property.type, items = type(items) == "table" and items.type or nil }
    end
  end
  return types
end

local function compile_types(list)
  local patterns = { all = false }
  for index, said in ipairs(list) do
    patterns.all = patterns.all or said == "*/*"
    patterns[index] = "^" .. said:lower():gsub("[^%w*/]", "%%%0"):gsub("%*", "[^/]*") .. "$"
  end
  return patterns
end

local function set_of(list)
  local set = {}
  for _, value in ipairs(list) do
    set[value] = true
  end
  return set
end

function handler:on_configure(config)
  local setup = {}
  for _, part in ipairs({ "headers", "query" }) do
    if config[part] then
      setup[part] = { schema = compile_schema(config[part], part), types = types_of(config[part]) }
    end
  end
  if config.body then
    setup.body = {
      schema = compile_schema(config.body.schema, "body.schema"),
      needed = set_of(config.body.methods or default_methods),
      types = compile_types(config.body.content_types or default_types),
    }
  end
  prepared[config] = setup
end

-- A text as a schema's type has it; the text itself where it is none.
local function converted(text, kind)
  if kind == "integer" or kind == "number" then
    -- As JSON writes numbers: Lua also takes `0x10`, ` 1` and `nan`.
    if text:find("^-?%d+%.?%d*[eE]?[+-]?%d*$") and not text:find("^-?0%d") then
      return tonumber(text) or text
    end
  elseif kind == "boolean" then
    if text == "true" then
      return true
    elseif text == "false" then
      return false
    end
  end
  return text
end

-- One value as it is, several as a list; what the schema says is a list is one in any case.
local function typed(value, said)
  local kind, items = said and said.kind, said and said.items
  if type(value) ~= "table" and kind ~= "array" then
    return converted(value, kind)
  end
  local list = {}
  for index, text in ipairs(type(value) == "table" and value or { value }) do
    list[index] = converted(text, items)
  end
  return envoy.json.array(list)
end

-- Checks names and values. Bytes that are no UTF-8 make the document none, and are told as that.
local function check_fields(part, values)
  local document = {}
  for name, value in pairs(values) do
    if name:sub(1, 1) ~= ":" then
      document[name] = typed(value, part.types[name])
    end
  end
  local text = next(document) == nil and "{}" or envoy.json.encode(document)
  return part.schema:validate(text)
end

local function refuse(status, config, details, place, messages)
  local headers = { [":status"] = tostring(status), ["content-type"] = "text/plain" }
  local body = config.message
  if not body then
    headers["content-type"] = "application/json"
    body = '{"error":"invalid request","in":"' .. place .. '","messages":'
      .. envoy.json.encode(envoy.json.array(messages)) .. "}\n"
  end
  envoy.respond(headers, body, "outrider.request-validation." .. details)
end

local function has_type(patterns, content_type)
  if content_type == "" then
    -- Only what stands for all is for a body without a type.
    return patterns.all
  end
  for _, pattern in ipairs(patterns) do
    if content_type:find(pattern) then
      return true
    end
  end
  return false
end

local function check_body(config, body)
  local content = envoy.req.get_body()
  local length = content and content:length() or 0
  if length == 0 then
    if body.needed[envoy.req.get_header(":method")] then
      refuse(config.status or 400, config, "no_body", "body", { "there is none" })
    end
    return
  end
  local encoding = envoy.req.get_header("content-encoding")
  if encoding and encoding:lower() ~= "identity" then
    return refuse(415, config, "content_encoding", "body", { "it is compressed, and cannot be checked" })
  end
  -- Two types mean that somebody hopes the two of us believe different ones.
  local content_type = ""
  if envoy.req.get_header_size("content-type") == 1 then
    content_type = envoy.req.get_header("content-type"):lower():match("^%s*([^;%s]*)")
  end
  if not has_type(body.types, content_type) then
    return refuse(415, config, "content_type", "body", { "it has another type than those that are taken" })
  end
  local valid, messages = body.schema:validate(content:getBytes(0, length))
  if not valid then
    refuse(config.status or 400, config, "body", "body", messages)
  end
end

function handler:on_request()
  local config = envoy.config()
  local setup = prepared[config]
  if setup.headers then
    local valid, messages = check_fields(setup.headers, envoy.req.get_headers())
    if not valid then
      return refuse(config.status or 400, config, "headers", "headers", messages)
    end
  end
  if setup.query then
    local valid, messages = check_fields(setup.query, envoy.req.get_query_parameters(10000))
    if not valid then
      return refuse(config.status or 400, config, "query", "query", messages)
    end
  end
  if setup.body then
    check_body(config, setup.body)
  end
end

return handler
