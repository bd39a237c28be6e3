function envoy_on_response(handle) end
