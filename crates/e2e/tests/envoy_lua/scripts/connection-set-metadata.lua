--@ request GET /bytes/5
--@ connection-metadata
--@ differs always empty, with a warning in the log: Envoy does not show what belongs to the connection to modules
function envoy_on_request(handle)
  local found = handle:connectionStreamInfo():dynamicMetadata():get("envoy.filters.network.rbac")
  handle:logInfo(tostring(found and found.shadow_engine_result))
end
