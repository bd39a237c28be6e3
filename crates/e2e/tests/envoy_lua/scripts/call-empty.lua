--@ request GET /bytes/5
--@ answer empty
--@ calls 1
--@ same
function envoy_on_request(handle)
  local headers, body = handle:httpCall("lua_cluster",
    { [":method"] = "GET", [":path"] = "/", [":authority"] = "a" }, nil, 5000)
  handle:logInfo(headers[":status"] .. tostring(body))
end
