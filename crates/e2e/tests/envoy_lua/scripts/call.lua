--@ request GET /bytes/5
--@ calls 2
--@ same
function envoy_on_request(handle)
  local headers, body = handle:httpCall("lua_cluster", {
    [":method"] = "POST", [":path"] = "/a?b=c", [":authority"] = "calls.example",
    ["x-number"] = 5, ["x-list"] = { "a", "b" },
  }, "hello", 5000)
  handle:logInfo(headers[":status"] .. tostring(headers.key) .. tostring(body))
  handle:headers():add("x-called", "1")
end
function envoy_on_response(handle)
  local headers, body = handle:httpCall("lua_cluster",
    { [":method"] = "GET", [":path"] = "/response", [":authority"] = "a" }, nil, 5000)
  handle:headers():add("x-called", headers.foo .. #body)
end
