-- An id for each request. What a client sends as one ends up in logs of many services, so it is kept
-- only if it cannot do harm there.

local handler = { version = "v2" }

local LONGEST = 128

-- Headers of the connection and of the message's framing, which belong to the proxy; and `host`, which is
-- another name of `:authority`.
local reserved = {
  ["connection"] = true, ["content-length"] = true, ["host"] = true, ["keep-alive"] = true,
  ["proxy-connection"] = true, ["te"] = true, ["trailer"] = true, ["transfer-encoding"] = true,
  ["upgrade"] = true,
}

local function is_sound(id)
  return #id <= LONGEST and id:find("^[%w._~+/=:-]+$") ~= nil
end

local function generate(generator)
  local id = envoy.uuid()
  if generator == "hex" then
    id = id:gsub("-", "")
  end
  return id
end

local function incoming(header)
  -- Two ids are none: whoever reads the other one looks for another request.
  if envoy.req.get_header_size(header) == 1 then
    local id = envoy.req.get_header(header)
    return is_sound(id) and id or nil
  end
end

function handler:on_configure(config)
  local header = (config.header or "x-request-id"):lower()
  if reserved[header] then
    error("`header` cannot be `" .. header .. "`; choose another, for example x-request-id", 0)
  end
end

function handler:on_request_header()
  local config = envoy.config()
  local header = config.header or "x-request-id"
  local id
  if config.keep_incoming ~= false then
    id = incoming(header)
  end
  if not id then
    id = generate(config.generator)
    envoy.req.set_header(header, id)
  end
  envoy.stream.shared.id = id
end

function handler:on_response_header()
  local config = envoy.config()
  local id = envoy.stream.shared.id
  if id and config.echo ~= false then
    envoy.resp.set_header(config.header or "x-request-id", id)
  end
end

return handler
