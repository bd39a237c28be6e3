--@ request GET /bytes/5
--@ differs values that are nested deeper than a list are nil: Envoy does not show them to modules
function envoy_on_request(handle)
  local nested = handle:metadata():get("nested")
  handle:logInfo(tostring(nested and nested.inner))
end
