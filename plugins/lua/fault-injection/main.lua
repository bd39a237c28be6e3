-- Faults on purpose: a delay, an error, or a delay and then an error.

local handler = { version = "v2" }

-- Whether this request is one of `percentage` in a hundred. `math.random` is below 1, so 0 means
-- never and 100 means always.
local function struck(percentage)
  return math.random() * 100 < (percentage or 100)
end

function handler:on_request_header()
  local config = envoy.config()
  local delay, abort = config.delay, config.abort

  if delay and struck(delay.percentage) then
    envoy.sleep(delay.milliseconds)
  end

  if abort and struck(abort.percentage) then
    local headers = { ["content-type"] = "text/plain" }
    for name, value in pairs(abort.headers or {}) do
      headers[name:lower()] = value
    end
    headers[":status"] = tostring(abort.status)
    envoy.respond(headers, abort.body or "", "outrider.fault-injection.abort")
  end
end

return handler
