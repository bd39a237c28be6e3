local handler = { version = "v2" }

function handler:on_response_header()
  envoy.resp.set_header("x-stamp", "outrider")
end

return handler
