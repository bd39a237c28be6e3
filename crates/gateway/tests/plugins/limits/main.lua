local handler = { version = "v2" }

function handler:on_request_header()
  envoy.req.set_header("x-limited", "yes")
end

return handler
