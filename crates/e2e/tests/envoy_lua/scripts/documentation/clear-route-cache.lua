-- From the documentation of Envoy's Lua filter (Envoy authors, Apache License 2.0), unchanged.
--@ request GET /bytes/5
--@ same
function envoy_on_request(request_handle)
  -- Clear the route cache
  request_handle:clearRouteCache()
end
