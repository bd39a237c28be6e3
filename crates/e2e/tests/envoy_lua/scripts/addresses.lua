--@ request GET /bytes/5 header:x-forwarded-for=10.1.2.3
--@ xff
--@ same
function envoy_on_request(handle)
  local info = handle:streamInfo()
  handle:logInfo(info:downstreamRemoteAddress() .. " "
    .. info:downstreamDirectRemoteAddress():gsub(":%d+$", ""))
end
