-- From the documentation of Envoy's Lua filter (Envoy authors, Apache License 2.0), unchanged.
--@ request GET /bytes/5
--@ same
function envoy_on_request(request_handle)
  -- Override upstream host without strict mode
  request_handle:setUpstreamOverrideHost("192.168.21.13", false)

  -- Override upstream host with strict mode
  request_handle:setUpstreamOverrideHost("192.168.21.13", true)
end
