--@ request POST /echo?whole pieces:one|two trailer:x-t=1
--@ request POST /echo?whole pieces:one|two
--@ request GET /bytes/5
--@ same
function envoy_on_request(handle)
  local trailers = handle:trailers()
  handle:logInfo(tostring(trailers and trailers:get("x-t")))
end
function envoy_on_response(handle)
  local trailers = handle:trailers()
  handle:logInfo(tostring(trailers))
end
