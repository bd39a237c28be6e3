--@ request POST /echo?whole pieces:one
--@ calls 1
--@ same
function envoy_on_request(handle)
  for chunk in handle:bodyChunks() do
    if chunk:length() > 0 then
      local headers = handle:httpCall("lua_cluster",
        { [":method"] = "GET", [":path"] = "/chunk", [":authority"] = "a" }, nil, 5000)
      handle:logInfo(tostring(headers[":status"]))
    end
  end
  handle:logInfo("end")
end
