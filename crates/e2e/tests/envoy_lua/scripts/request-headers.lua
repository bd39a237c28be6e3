--@ request GET /bytes/5 header:x-one=1
--@ same
function envoy_on_request(handle)
  handle:requestHeaders():add("x-new", handle:requestHeaders():get("x-one"))
end
function envoy_on_response(handle)
  handle:headers():add("x-path", handle:requestHeaders():get(":path"))
  handle:headers():add("x-new", handle:requestHeaders():get("x-new"))
end
