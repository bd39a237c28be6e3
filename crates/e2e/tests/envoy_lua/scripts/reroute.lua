-- Each change of the request's headers has the route chosen anew.
--@ request GET /bytes/5
--@ same
function envoy_on_request(handle)
  local info = handle:streamInfo()
  handle:logInfo(info:routeName())
  handle:headers():add("x-upstream-protocol", "2")
  handle:logInfo(info:routeName())
  handle:clearRouteCache()
  handle:logInfo(info:routeName())
end
