--@ request GET /bytes/5
--@ virtual-cluster
--@ differs always an empty text: Envoy does not show it to modules, and a gateway's configuration has none
function envoy_on_response(handle)
  handle:logInfo(handle:streamInfo():virtualClusterName())
end
