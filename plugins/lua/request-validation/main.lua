-- Checks requests by JSON Schema, before the upstream sees anything of them.
--
-- The handler is that of version 1, because there `get_body` waits for the body where it is called:
-- where only headers or the query are checked, no body is held back.

local handler = {}

local HUGE = math.huge

-- `envoy.req.get_query_parameters` reads no more; a request with more cannot be checked.
local MOST_PARAMETERS = 10000

-- A media type has at most 127 characters on each side of its slash (RFC 6838, section 4.2).
local LONGEST_TYPE = 255

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

-- Types of headers and parameters by name, from the schema's `properties`: their texts are converted to
-- these types before the check.
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

-- Returns whether a text is a number by the grammar of JSON (RFC 8259, section 6) that a double can hold.
-- Lua's `tonumber` also takes `0x10`, ` 1`, `1.` and `nan`.
local function is_json_number(text)
  local rest = text:match("^-?%d+(.*)$")
  if not rest or text:find("^-?0%d") then
    return false
  end
  rest = rest:match("^%.%d+(.*)$") or rest
  if rest ~= "" and not rest:find("^[eE][+-]?%d+$") then
    return false
  end
  local number = tonumber(text)
  return number ~= nil and number > -HUGE and number < HUGE
end

-- The JSON of a text, as a value of the schema's type where the text is one. Digits stay as they were
-- sent, so that no rounding hides a value from the check.
local function json_of(text, kind)
  if kind == "integer" or kind == "number" then
    if is_json_number(text) then
      return text
    end
  elseif kind == "boolean" and (text == "true" or text == "false") then
    return text
  end
  return envoy.json.encode(text)
end

-- The JSON of all values of one name: a list where there are several, or where the schema's type is
-- `array`.
local function json_of_values(values, said)
  local kind, items = said and said.kind, said and said.items
  if type(values) ~= "table" and kind ~= "array" then
    return json_of(values, kind)
  end
  local list = {}
  for index, text in ipairs(type(values) == "table" and values or { values }) do
    list[index] = json_of(text, items)
  end
  return "[" .. table.concat(list, ",") .. "]"
end

local function document_of(part, values)
  local members = {}
  for name, value in pairs(values) do
    if name:sub(1, 1) ~= ":" then
      members[#members + 1] = envoy.json.encode(name) .. ":" .. json_of_values(value, part.types[name])
    end
  end
  return "{" .. table.concat(members, ",") .. "}"
end

-- Validates headers or parameters. Bytes that are not UTF-8 are not JSON, and so never valid.
local function check_fields(part, values)
  local is_text, document = pcall(document_of, part, values)
  if not is_text then
    return false, { "a name or a value is not UTF-8" }
  end
  return part.schema:validate(document)
end

-- Returns whether the path has more parameters than `envoy.req.get_query_parameters` reads.
local function has_too_many_parameters()
  local _, separators = (envoy.req.get_header(":path") or ""):gsub("&", "")
  return separators >= MOST_PARAMETERS
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
  if #content_type > LONGEST_TYPE then
    return false
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
      refuse(config.status or 400, config, "no_body", "body", { "the request has no body" })
    end
    return
  end
  for index = 0, envoy.req.get_header_size("content-encoding") - 1 do
    local encoding = envoy.req.get_header_index("content-encoding", index) or ""
    if encoding:lower() ~= "identity" then
      return refuse(415, config, "content_encoding", "body", { "a compressed body cannot be checked" })
    end
  end
  -- With two types, the upstream could read the body by another one than this check.
  local content_type = ""
  if envoy.req.get_header_size("content-type") == 1 then
    content_type = envoy.req.get_header("content-type"):lower():match("^%s*([^;%s]*)")
  end
  if not has_type(body.types, content_type) then
    return refuse(415, config, "content_type", "body", { "the body's media type is not accepted" })
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
    if has_too_many_parameters() then
      return refuse(config.status or 400, config, "query", "query", { "the query has too many parameters" })
    end
    local valid, messages = check_fields(setup.query, envoy.req.get_query_parameters(MOST_PARAMETERS))
    if not valid then
      return refuse(config.status or 400, config, "query", "query", messages)
    end
  end
  if setup.body then
    check_body(config, setup.body)
  end
end

return handler
