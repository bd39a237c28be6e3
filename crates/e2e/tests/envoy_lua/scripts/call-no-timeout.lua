--@ request GET /bytes/5
--@ calls 1
--@ differs without a time, or with 0, a call may take a day; in Envoy it may take for ever
function envoy_on_request(handle)
  local headers = handle:httpCall("lua_cluster",
    { [":method"] = "GET", [":path"] = "/", [":authority"] = "a" }, nil, 0)
  handle:logInfo(headers[":status"])
end
