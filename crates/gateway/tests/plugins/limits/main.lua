function envoy_on_request(handle) end
