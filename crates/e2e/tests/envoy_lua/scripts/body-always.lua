--@ request GET /bytes/0
--@ request POST /echo?whole body:hello
--@ request GET /bytes/3 h2
--@ differs a message without a body stays one until the script sets bytes; Envoy makes it one with an empty chunked body
function envoy_on_request(handle)
  handle:logInfo(tostring(handle:body(true):length()))
end
function envoy_on_response(handle)
  local body = handle:body(true)
  handle:logInfo(tostring(body:length()) .. body:getBytes(0, 0))
end
