--@ request POST /echo?whole pieces:one|two trailer:x-t=1
--@ request POST /echo?whole body:abc
--@ same
function envoy_on_request(handle)
  local body = handle:body()
  local trailers = handle:trailers()
  handle:headers():add("x-length", body:length())
  handle:headers():add("x-trailer", tostring(trailers and trailers:get("x-t")))
end
