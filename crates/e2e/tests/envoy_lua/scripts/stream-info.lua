--@ request GET /bytes/5
--@ request GET /bytes/5 h2
--@ same
function envoy_on_request(handle)
  local info = handle:streamInfo()
  handle:logInfo(info:protocol() .. " " .. info:routeName() .. " [" .. info:virtualClusterName() .. "] ["
    .. info:requestedServerName() .. "]")
  local function shape(address)
    return (address:gsub(":%d+$", ":port"))
  end
  handle:logInfo(shape(info:downstreamLocalAddress()) .. shape(info:downstreamDirectLocalAddress())
    .. shape(info:downstreamRemoteAddress()) .. shape(info:downstreamDirectRemoteAddress()))
  handle:logInfo(tostring(info:downstreamSslConnection()) .. tostring(handle:connection():ssl()))
end
