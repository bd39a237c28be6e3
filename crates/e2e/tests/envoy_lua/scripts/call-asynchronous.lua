--@ request GET /delay/300
--@ calls 2
--@ same
local request = { [":method"] = "GET", [":path"] = "/async", [":authority"] = "a" }
function envoy_on_request(handle)
  local headers = handle:httpCall("lua_cluster", request, nil, 5000, true)
  handle:logInfo(tostring(headers))
  headers = handle:httpCall("lua_cluster", request, "body",
    { asynchronous = true, timeout_ms = 5000 })
  handle:logInfo(tostring(headers))
end
