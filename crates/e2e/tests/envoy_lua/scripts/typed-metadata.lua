--@ request GET /bytes/5
--@ set-metadata
--@ differs always nil, with a warning in the log: Envoy shows modules nothing of it that Lua could read
function envoy_on_request(handle)
  handle:logInfo(tostring(handle:streamInfo():dynamicTypedMetadata("foreign-typed") ~= nil))
end
