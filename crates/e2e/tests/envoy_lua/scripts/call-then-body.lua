--@ request POST /echo?whole pieces:one|two
--@ answer late
--@ calls 1
--@ differs a body that arrives while the script waits for a call can be asked for afterwards; Envoy raises an error
function envoy_on_request(handle)
  local headers = handle:httpCall("lua_cluster",
    { [":method"] = "GET", [":path"] = "/", [":authority"] = "a" }, nil, 5000)
  handle:headers():add("x-called", headers.foo)
  handle:logInfo(tostring(handle:body():length()))
end
