--@ request GET /bytes/5
--@ differs raises an error: Envoy does not offer it to modules
function envoy_on_request(handle)
  handle:logInfo(tostring(pcall(function() handle:streamInfo():drainConnectionUponCompletion() end)))
end
