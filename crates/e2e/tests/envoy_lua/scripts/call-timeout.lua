--@ request GET /bytes/5
--@ answer never
--@ calls 1
--@ same
function envoy_on_request(handle)
  local headers, body = handle:httpCall("lua_cluster",
    { [":method"] = "GET", [":path"] = "/", [":authority"] = "a" }, nil, 50)
  handle:logInfo(headers[":status"] .. tostring(headers["content-length"]) .. tostring(headers["content-type"])
    .. tostring(body))
end
