-- From the documentation of Envoy's Lua filter (Envoy authors, Apache License 2.0), unchanged.
--@ request GET /bytes/5
--@ same
function envoy_on_request(request_handle)
  local virtual_cluster = request_handle:streamInfo():virtualClusterName()
  request_handle:logInfo("Matched virtual cluster: " .. virtual_cluster)
end
