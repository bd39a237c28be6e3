--@ request GET /bytes/5
--@ answer close
--@ calls 1
--@ differs the body of a call that was reset is `upstream failure`; in Envoy it is the router's text
function envoy_on_request(handle)
  local headers, body = handle:httpCall("lua_cluster",
    { [":method"] = "GET", [":path"] = "/", [":authority"] = "a" }, nil, 5000)
  handle:logInfo(headers[":status"] .. tostring(headers["content-length"] == tostring(#body))
    .. tostring(headers["content-type"]) .. tostring(body))
end
