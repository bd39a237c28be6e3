--@ request POST /echo?whole body:hello
--@ request POST /echo?whole pieces:hel|lo
--@ request POST /echo?whole pieces:hel|lo trailer:x-t=1
--@ request POST /echo?whole body:hello h2
--@ same
function envoy_on_request(handle)
  local body = handle:body()
  handle:logInfo(tostring(body:setBytes("a longer body than it was")))
  handle:logInfo(tostring(handle:headers():get("content-length")))
  handle:logInfo(body:getBytes(2, 6))
end
function envoy_on_response(handle)
  handle:logInfo(tostring(handle:body():setBytes("")))
end
