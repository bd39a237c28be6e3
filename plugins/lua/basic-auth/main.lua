-- Authentication by password (RFC 7617) or by a shared token.
--
-- Who sends no valid password gets 401 and may try again; who sends no valid token gets 403.

local handler = { version = "v2" }

local byte, abs = string.byte, math.abs

-- Whether two texts are equal, in a time that depends on the length of `given` alone: a comparison
-- that stops at the first difference tells a patient client how much of a secret it has guessed.
local function equal(given, secret)
  local difference = abs(#given - #secret)
  for i = 1, #given do
    local expected = byte(secret, (i - 1) % #secret + 1)
    difference = difference + abs(byte(given, i) - expected)
  end
  return difference == 0
end

-- The value of a request header, or nil when it is missing or there are several: two credentials in
-- one request mean that somebody hopes the two of us read different ones.
local function single(name)
  if envoy.req.get_header_size(name) == 1 then
    return envoy.req.get_header(name)
  end
end

-- User name and password of an `authorization` header, or nil.
local function credentials(value)
  local scheme, encoded = value:match("^(%a+) +([%w+/]+=*) *$")
  if not scheme or scheme:lower() ~= "basic" then
    return nil
  end
  local decoded = envoy.base64.decode(encoded)
  if not decoded then
    return nil
  end
  -- Only the name cannot contain a colon.
  return decoded:match("^([^:]*):(.*)$")
end

local function challenge(realm, details)
  local quoted = realm:gsub('[\\"]', "\\%0")
  envoy.respond({
    [":status"] = "401",
    ["content-type"] = "text/plain",
    ["www-authenticate"] = 'Basic realm="' .. quoted .. '", charset="UTF-8"',
  }, "unauthorized\n", details)
end

local function check_password(config)
  if config.user_header then
    envoy.req.clear_header(config.user_header)
  end

  local realm = config.realm or "restricted"
  local value = single("authorization")
  if not value then
    return challenge(realm, "outrider.basic-auth.no_credentials")
  end

  local name, password = credentials(value)
  if not name then
    return challenge(realm, "outrider.basic-auth.malformed_credentials")
  end

  -- A name that is not known is compared too, so that time does not tell which names are.
  local known = config.users[name]
  if not equal(password, known or "\0") or not known then
    return challenge(realm, "outrider.basic-auth.wrong_credentials")
  end

  if config.user_header then
    envoy.req.set_header(config.user_header, name)
  end
  if config.hide_credentials then
    envoy.req.clear_header("authorization")
  end
end

local function check_token(config)
  local header = config.token.header or "x-token"
  local given = single(header)
  if not given or not equal(given, config.token.value) then
    return envoy.respond(
      { [":status"] = "403", ["content-type"] = "text/plain" },
      "forbidden\n",
      "outrider.basic-auth.wrong_token"
    )
  end
  if config.hide_credentials then
    envoy.req.clear_header(header)
  end
end

-- What the schema cannot say.
function handler:on_configure(config)
  if config.token then
    for _, key in ipairs({ "realm", "user_header" }) do
      if config[key] ~= nil then
        error("`" .. key .. "` has no meaning with `token`; remove it, or use `users`", 0)
      end
    end
  elseif config.user_header and config.user_header:lower() == "authorization" then
    error("`user_header` cannot be `authorization`; choose a header of its own, for example x-user", 0)
  end
end

function handler:on_request_header()
  local config = envoy.config()
  if config.token then
    check_token(config)
  else
    check_password(config)
  end
end

return handler
