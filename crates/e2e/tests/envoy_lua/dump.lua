local function members(object)
  local names = {}
  for name in pairs(getmetatable(object)) do
    names[#names + 1] = tostring(name)
  end
  return table.concat(names, " ")
end
function envoy_on_request(handle)
  local info, stats = handle:streamInfo(), handle:stats()
  local objects = {
    handle = handle, headers = handle:headers(), buffer = handle:body(true), metadata = handle:metadata(),
    streamInfo = info, dynamicMetadata = info:dynamicMetadata(), filterState = info:filterState(),
    ssl = info:downstreamSslConnection(), connection = handle:connection(),
    connectionStreamInfo = handle:connectionStreamInfo(),
    connectionDynamicMetadata = handle:connectionStreamInfo():dynamicMetadata(),
    virtualHost = handle:virtualHost(), route = handle:route(), filterContext = handle:filterContext(),
    publicKey = handle:importPublicKey("none", 4), stats = stats, counter = stats:counter("a"),
    gauge = stats:gauge("b"), histogram = stats:histogram("c"),
  }
  local lines = {}
  for name, object in pairs(objects) do
    lines[#lines + 1] = name .. ": " .. members(object)
  end
  handle:respond({ [":status"] = "200" }, table.concat(lines, "\n"))
end
