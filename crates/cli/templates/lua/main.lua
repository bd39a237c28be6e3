-- my-plugin: a request has to say who sends it, in a header, or it is refused.
--
-- This is a plugin to begin with: it works, and has in it what most plugins need. Make it yours, and
-- cases/my-plugin.yaml along with it; `outrider plugin test` says whether the two agree.

local handler = { version = "v2" }

-- What is made of each configuration, once instead of for each request. Weak keys: a configuration
-- that is gone takes its entry along.
local prepared = setmetatable({}, { __mode = "k" })

-- Called with each configuration before it is used. By then it satisfies config.schema.json; what a
-- schema cannot say is refused here, with error("why", 0).
function handler:on_configure(config)
  local known
  if config.values then
    known = {}
    for _, value in ipairs(config.values) do
      known[value] = true
    end
  end
  prepared[config] = {
    header = config.header or "x-client-id",
    known = known,
    message = config.message or "say who you are\n",
  }
end

-- Called when a request's headers are there. The other phases have handlers of their own, and cost
-- nothing where there is none: on_request_body, on_request_trailer, on_response_header,
-- on_response_body, on_response_trailer, on_log.
function handler:on_request_header()
  -- envoy.config() is the gateway's configuration as this request's project and route change it.
  local settings = prepared[envoy.config()]
  local value = envoy.req.get_header(settings.header) or ""
  if value == "" or (settings.known and not settings.known[value]) then
    -- The request ends here: nothing below this runs. The last text is for access logs.
    envoy.respond(
      { [":status"] = "400", ["content-type"] = "text/plain" },
      settings.message,
      "outrider.my-plugin.unknown_client"
    )
  end
  -- Of a header that came twice, only the value that was looked at goes on.
  envoy.req.set_header(settings.header, value)
end

return handler
