--@ request GET /bytes/5 header:x-one=1 header:x-two=first header:x-two=second
--@ request GET /headers?x-up=1&x-up=2 h2
--@ same
function envoy_on_request(handle)
  local headers = handle:headers()
  headers:add("X-Added", "a")
  headers:add("x-added", 12.5)
  headers:replace("x-one", "other")
  headers:replace("x-new", "new")
  headers:remove("x-two")
  headers:remove("x-none")
  headers:replace(":path", "/headers?x-replaced=1")
  handle:logInfo(headers:get("x-added") .. headers:get(":path"))
end
function envoy_on_response(handle)
  local headers = handle:headers()
  headers:add("x-added", "b")
  headers:replace("x-up", "3")
  headers:replace(":status", "202")
  headers:remove("content-type")
end
