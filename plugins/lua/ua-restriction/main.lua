-- Who may pass by what they say they are. A user agent can say anything: this keeps honest robots
-- out, not dishonest ones.

local handler = { version = "v2" }

-- No client that is meant has a longer one; the time to search it grows with its length.
local LONGEST = 8192

-- Lower-case lists, by configuration; a configuration that is gone takes its lists along.
local lists = setmetatable({}, { __mode = "k" })

local function lowered(list)
  local lower = {}
  for index, text in ipairs(list) do
    lower[index] = text:lower()
  end
  return lower
end

function handler:on_configure(config)
  lists[config] = {
    allow = config.allow and lowered(config.allow),
    deny = lowered(config.deny or {}),
  }
end

local function contains_any(agent, texts)
  for _, text in ipairs(texts) do
    if agent:find(text, 1, true) then
      return true
    end
  end
  return false
end

-- All values of the header as one text, so that a second one cannot hide behind the first.
local function user_agent()
  local count = envoy.req.get_header_size("user-agent")
  if count <= 1 then
    return envoy.req.get_header("user-agent") or ""
  end
  local values = {}
  for index = 0, count - 1 do
    values[#values + 1] = envoy.req.get_header_index("user-agent", index)
  end
  return table.concat(values, ", ")
end

local function refuse(config, details, status)
  envoy.respond(
    { [":status"] = tostring(status or config.status or 403), ["content-type"] = "text/plain" },
    config.message or "forbidden\n",
    details
  )
end

function handler:on_request_header()
  local config = envoy.config()
  local agent = user_agent():lower()
  if agent == "" then
    if not config.bypass_missing then
      refuse(config, "outrider.ua-restriction.missing")
    end
    return
  end

  if #agent > LONGEST then
    return refuse(config, "outrider.ua-restriction.too_long", 400)
  end

  local texts = lists[config]
  if contains_any(agent, texts.deny) then
    refuse(config, "outrider.ua-restriction.denied")
  elseif texts.allow and not contains_any(agent, texts.allow) then
    refuse(config, "outrider.ua-restriction.not_allowed")
  end
end

return handler
