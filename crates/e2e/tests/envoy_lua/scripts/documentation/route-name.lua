-- From the documentation of Envoy's Lua filter (Envoy authors, Apache License 2.0), unchanged.
--@ request GET /bytes/5
--@ same
function envoy_on_request(request_handle)
  local route_name = request_handle:streamInfo():routeName()
  request_handle:logInfo("Matched route: " .. route_name)
end
