--@ request GET /bytes/5
--@ same
local function attempt(handle, ...)
  handle:logInfo(tostring((pcall(handle.setUpstreamOverrideHost, handle, ...))))
end
function envoy_on_request(handle)
  attempt(handle, "name.example")
  attempt(handle, {})
  attempt(handle, "10.0.0.1:80", 1)
  handle:setUpstreamOverrideHost("10.255.0.1:80")
end
