-- Asks a service whether a request may pass.
--
--   2xx            it may; listed headers of the answer go into the request
--   3xx, 4xx       it may not; the client gets this answer
--   anything else  the service is broken, and `failure` decides

local handler = { version = "v2" }

-- Headers of the connection and of the message's framing, which belong to the proxy; and `host`, which is
-- another name of `:authority`.
local reserved = {
  ["connection"] = true, ["content-length"] = true, ["host"] = true, ["keep-alive"] = true,
  ["proxy-connection"] = true, ["te"] = true, ["trailer"] = true, ["transfer-encoding"] = true,
  ["upgrade"] = true,
}

-- Bytes of a question's headers. Outrider sends at most 60 KiB; services often take less.
local LONGEST = 48 * 1024

local default_request_headers = { "authorization", "cookie" }
local default_client_headers = { "content-type", "www-authenticate", "location", "set-cookie" }

-- All values of a request header, as `envoy.httpCall` takes them: nil, a text, or a list of texts.
local function request_values(name)
  local count = envoy.req.get_header_size(name)
  if count <= 1 then
    return envoy.req.get_header(name)
  end
  local values = {}
  for index = 0, count - 1 do
    values[#values + 1] = envoy.req.get_header_index(name, index)
  end
  return values
end

-- The IP address of `address:port`; IPv6 addresses come in brackets.
local function without_port(address)
  return address:match("^%[(.-)%]") or address:match("^(.*):%d+$") or address
end

local function question(config, path)
  local headers = {}
  for _, name in ipairs(config.request_headers or default_request_headers) do
    headers[name:lower()] = request_values(name)
  end
  local client = envoy.streaminfo.downstream_remote_address()
  -- Written last: no header of the request can stand in for these.
  headers[":method"] = config.method or "GET"
  -- A CONNECT request has no path.
  headers[":path"] = config.path or ((config.path_prefix or "") .. (path or "/"))
  headers[":authority"] = config.host or config.upstream
  headers["x-forwarded-method"] = envoy.req.get_header(":method")
  headers["x-forwarded-host"] = envoy.req.get_header(":authority")
  headers["x-forwarded-uri"] = path
  headers["x-forwarded-for"] = client and without_port(client)
  return headers
end

local function size(headers)
  local bytes = 0
  for name, value in pairs(headers) do
    local values = type(value) == "table" and value or { value }
    for _, text in ipairs(values) do
      bytes = bytes + #name + #text
    end
  end
  return bytes
end

-- The client gets the service's answer, with those of its headers that the client may see.
local function refuse(config, answer, body)
  local headers = { [":status"] = answer[":status"] }
  for _, name in ipairs(config.client_headers or default_client_headers) do
    name = name:lower()
    headers[name] = answer[name]
  end
  envoy.respond(headers, body or "", "outrider.ext-auth.denied")
end

local function permit(config, answer)
  for _, name in ipairs(config.upstream_headers or {}) do
    local values = answer[name:lower()]
    envoy.req.clear_header(name)
    if type(values) == "table" then
      for _, value in ipairs(values) do
        envoy.req.add_header(name, value)
      end
    elseif values then
      envoy.req.set_header(name, values)
    end
  end
end

local function fail(config, reason)
  if config.failure == "open" then
    envoy.logWarn("no answer from " .. config.upstream .. ", the request passes: " .. reason)
    return permit(config, {})
  end
  envoy.logWarn("no answer from " .. config.upstream .. ", the request is refused: " .. reason)
  envoy.respond(
    { [":status"] = tostring(config.status_on_error or 503), ["content-type"] = "text/plain" },
    "authorization is not available\n",
    "outrider.ext-auth.error"
  )
end

local function check_names(names, place)
  for index, name in ipairs(names or {}) do
    if reserved[name:lower()] then
      error(place .. "." .. index - 1 .. ": `" .. name .. "` belongs to the connection, and is never passed on; remove it", 0)
    end
  end
end

function handler:on_configure(config)
  for _, key in ipairs({ "request_headers", "upstream_headers", "client_headers" }) do
    check_names(config[key], key)
  end
  if config.path and config.path_prefix then
    error("`path` and `path_prefix` exclude each other; remove one of them", 0)
  end
end

function handler:on_request_header()
  local config = envoy.config()
  local path = envoy.req.get_header(":path")
  if path and path:find("[%c ]") then
    -- HTTP/2 can carry such bytes; in a question to the service they would be another request.
    return envoy.respond(
      { [":status"] = "400", ["content-type"] = "text/plain" },
      "bad request\n",
      "outrider.ext-auth.bad_path"
    )
  end
  local headers = question(config, path)
  if size(headers) > LONGEST then
    return envoy.respond(
      { [":status"] = "431", ["content-type"] = "text/plain" },
      "request header fields too large\n",
      "outrider.ext-auth.too_large"
    )
  end
  local answer, body = envoy.httpCall(config.upstream, headers, "", config.timeout_ms or 500)
  if not answer then
    -- Without an answer, the second value is the reason.
    return fail(config, body)
  end

  local status = tonumber(answer[":status"]) or 0
  if status >= 200 and status < 300 then
    permit(config, answer)
  elseif status >= 300 and status < 500 then
    refuse(config, answer, body)
  else
    fail(config, "it answered with status " .. status)
  end
end

return handler
