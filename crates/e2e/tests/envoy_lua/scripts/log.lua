--@ request GET /bytes/5
--@ same
function envoy_on_request(handle)
  handle:logTrace("trace")
  handle:logDebug("debug")
  handle:logInfo("info")
  handle:logWarn("warn")
  handle:logErr("err")
  handle:logInfo(12)
  handle:headers():logInfo("by another object")
  handle:streamInfo():dynamicMetadata():logWarn("and another")
end
