--@ request OPTIONS *
--@ request GET /bytes/5
--@ same
function envoy_on_request(handle)
  handle:headers():add("x-request", "1")
end
function envoy_on_response(handle)
  handle:headers():add("x-seen", handle:headers():get(":status"))
end
